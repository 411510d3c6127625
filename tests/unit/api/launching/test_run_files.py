"""Nobody waits for a pipe, or anything else, that a job puts in place of a file of its run; no other job notices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keyscale.api.launching.driver_log import LOG_FILE, LogWriter, open_log
from keyscale.api.launching.isolation import JobUser, give_to, owner_of
from keyscale.api.launching.launcher import Launcher
from keyscale.api.launching.processes import ProcessState, read_exit_code, read_supervisor
from keyscale.api.launching.program_loading import ProgramLoading
from keyscale.api.launching.run_files import TEXT_BYTES_MAX, read_text
from keyscale.api.libraries.job_libraries import NO_JOB_LIBRARIES
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt
from tests.support.deep_directories import deepened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JOB_USER = JobUser(59_991, 59_991)  # used by this file alone


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link(path: Path) -> None:
    path.with_name("elsewhere").write_text("7")
    path.symlink_to(path.with_name("elsewhere"))


def a_folder(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")  # a socket's path must be short
    os.close(here)


def gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 << 30)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


def nonsense(path: Path) -> None:
    path.write_text("[" * 100_000)


HOSTILE = [a_pipe, a_device, a_link, a_folder, a_socket, gigabytes, no_text, nonsense]


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(Settings(home=tmp_path, store_url="file:///none"))


def directory_of(launcher: Launcher, tmp_path: Path, job: str = "job") -> Path:
    launcher.prepare(job, 1)
    return tmp_path / "runs" / job / "1"


def test_a_plain_small_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("é" * (TEXT_BYTES_MAX // 2))
    assert read_text(tmp_path / "file") == "é" * (TEXT_BYTES_MAX // 2)
    (tmp_path / "file").write_text("x" * (TEXT_BYTES_MAX + 1))
    assert read_text(tmp_path / "file") is None
    assert read_text(tmp_path / "none") is None
    assert read_text(tmp_path / "file" / "inner") is None


@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_registration_is_no_supervisor_and_what_is_no_number_is_no_exit_code(
    tmp_path: Path, launcher: Launcher, make: Callable[[Path], None]
) -> None:
    directory = directory_of(launcher, tmp_path)
    for name in ("process.json", "exit_code", "elsewhere"):
        if name != "elsewhere":
            make(directory / name)
        else:
            (directory / name).unlink(missing_ok=True)
    assert read_supervisor(directory) is None
    assert read_exit_code(directory) is None
    assert launcher.has_supervisor("job", 1) is False
    seen = launcher.inspect(Attempt(job_id="job", number=1, launched_on=launcher.place, attached_at_ms=1))
    assert seen.state is ProcessState.UNKNOWN, "its heartbeats show whether it lives"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"pid": -1, "started_at_s": 1.0}',
        '{"pid": 0, "started_at_s": 1.0}',
        '{"pid": 99999999999999999999, "started_at_s": 1.0}',
        '{"pid": "1", "started_at_s": 1.0}',
        '{"pid": 1, "started_at_s": "now"}',
        '{"pid": 1}',
    ],
)
def test_a_registration_of_impossible_values_is_none(tmp_path: Path, launcher: Launcher, text: str) -> None:
    directory = directory_of(launcher, tmp_path)
    (directory / "process.json").write_text(text)
    assert read_supervisor(directory) is None


@pytest.mark.parametrize("text", ["", "-1", "1" * 5000, "²", "0x10", "1 2"])
def test_an_exit_code_is_a_small_number(tmp_path: Path, launcher: Launcher, text: str) -> None:
    directory = directory_of(launcher, tmp_path)
    (directory / "exit_code").write_text(text)
    assert read_exit_code(directory) is None


@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_token_is_replaced_and_no_secret(
    tmp_path: Path, launcher: Launcher, make: Callable[[Path], None]
) -> None:
    directory = directory_of(launcher, tmp_path)
    (directory / "token").unlink()
    make(directory / "token")
    if make is not nonsense:
        assert launcher.secrets_of("job", 1, []) == {}
    if make is a_folder:
        with pytest.raises(IsADirectoryError):  # the job cannot start, and no other one notices
            launcher.prepare("job", 1)
        return
    launcher.prepare("job", 1)
    assert (directory / "token").is_file()


@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_list_of_libraries_keeps_no_other_job_from_starting(
    tmp_path: Path, launcher: Launcher, make: Callable[[Path], None]
) -> None:
    make(directory_of(launcher, tmp_path, "hostile") / "libraries")
    launcher.place_libraries(NO_JOB_LIBRARIES, directory_of(launcher, tmp_path, "other"))
    assert (tmp_path / "runs" / "other" / "1" / "libraries").read_text() == ""


@pytest.mark.parametrize("make", [a_pipe, a_device, a_link, a_folder, a_socket])
def test_what_is_no_log_is_empty(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / LOG_FILE)
    with open_log(tmp_path) as log:
        assert (log.begin, log.end) == (0, 0)


@pytest.mark.parametrize("make", [a_pipe, a_device, a_link, a_folder])
def test_what_is_no_earlier_part_of_a_log_is_left_out(tmp_path: Path, make: Callable[[Path], None]) -> None:
    LogWriter(tmp_path).write(b"here\n")
    make(tmp_path / f"{LOG_FILE}.9")
    with open_log(tmp_path) as log:
        assert log.read(log.begin, 100) == b"here\n"


def test_directories_of_other_names_are_no_runs(tmp_path: Path, launcher: Launcher) -> None:
    directory_of(launcher, tmp_path)
    for name in ("²", "0", "01", "9" * 200, "-1", "state"):
        (tmp_path / "runs" / "job" / name).mkdir()
    (tmp_path / "runs" / os.fsdecode(b"\xff")).mkdir()
    assert launcher.runs() == {"job": [1]}


@pytest.mark.parametrize("make", HOSTILE)
def test_a_control_plane_starts_whatever_a_planned_program_has_left(
    tmp_path: Path, launcher: Launcher, make: Callable[[Path], None]
) -> None:
    settings = Settings(home=tmp_path, store_url="file:///none")
    plan = settings.runs_directory / "plans" / "0123"
    plan.mkdir(parents=True)
    make(plan / "process.json")
    ProgramLoading(settings, launcher).sweep()
    assert not plan.exists()


def test_a_run_that_has_deleted_its_registration_is_killed_all_the_same(tmp_path: Path, launcher: Launcher) -> None:
    directory = directory_of(launcher, tmp_path)
    environment = {"KEYSCALE_WORK_DIR": str(directory / "work")}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(613)"], env=environment)
    try:
        launcher.kill("job", 1)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_directory_of_any_depth_is_given_once_and_what_its_user_makes_of_it_then_is_left_alone(
    tmp_path: Path,
) -> None:
    ours, given = tmp_path / "ours", tmp_path / "given"
    ours.mkdir()
    (ours / "secret").write_text("x")
    given.mkdir()
    (given / "link").symlink_to(ours)
    with deepened(given):
        give_to(given, JOB_USER)
        deepest = subprocess.run(
            ["find", given, "!", "-uid", str(JOB_USER.uid)], capture_output=True, text=True, check=True
        )
        assert deepest.stdout == ""
        assert (owner_of(given), owner_of(ours), owner_of(ours / "secret")) == (JOB_USER.uid, None, None)
        os.link(ours / "secret", given / "mine")  # as a user may where the host does not forbid it
        give_to(given, JOB_USER)
        assert owner_of(ours / "secret") is None


def test_a_directory_that_is_not_there_is_not_given(tmp_path: Path) -> None:
    give_to(tmp_path / "none", JOB_USER)
    assert not (tmp_path / "none").exists()
