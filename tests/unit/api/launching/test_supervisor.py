"""The steps of a supervisor, in this process. `test_launcher` runs whole supervisors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from keyscale.api.launching import supervisor
from keyscale.api.launching.driver_log import LOG_FILE, LogWriter
from keyscale.api.launching.supervisor import Output
from keyscale.jobs.protocol.redaction import Mask

if TYPE_CHECKING:
    from pathlib import Path

ASLEEP = next(iter(supervisor.ENDS_ASLEEP))


def test_the_first_process_registers_with_its_facts_and_the_second_one_changes_nothing(tmp_path: Path) -> None:
    assert supervisor.register(tmp_path, spare="s")
    [file] = tmp_path.iterdir()
    this = psutil.Process()
    expected = {"pid": this.pid, "started_at_s": this.create_time(), "spare": "s"}
    assert (file.name, json.loads(file.read_text())) == ("process.json", expected)
    assert not supervisor.register(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["process.json"]
    assert json.loads(file.read_text()) == expected


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_supervisor_runs_the_program_and_notes_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(supervisor, "register", lambda directory: steps.append(directory) or is_first)
    monkeypatch.setattr(supervisor, "leave_signals_to_driver", lambda: steps.append("signals"))
    monkeypatch.setattr(supervisor, "run", lambda *run: steps.append(run) or 7)
    code = supervisor.main([str(tmp_path), "driver", "-v"])
    file = tmp_path / supervisor.EXIT_CODE_FILE
    if is_first:
        assert (code, file.read_text()) == (7, "7")
        assert steps == [tmp_path, "signals", (tmp_path, ["driver", "-v"])]
    else:
        assert (code, file.exists(), steps) == (supervisor.EXIT_SUPERVISED_ALREADY, False, [tmp_path])


def test_a_run_has_its_quota_and_a_program_that_cannot_be_started_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "1"
    directory.mkdir()
    quotas: list[Any] = []

    def start(_: Path, command: list[str], __: Output, quota: Any) -> tuple[str, str]:
        quotas.append(quota)
        if command == ["missing"]:
            raise FileNotFoundError("no such program")
        return "the driver", "copying"

    def ended(driver: str, copying: str, output: Output, *rest: Any) -> int:
        assert (driver, copying, rest) == ("the driver", "copying", ({"disk_bytes": 5}, [tmp_path]))
        output.log.write(output.mask("of-the-orders\n").encode())
        return 9

    monkeypatch.setattr(supervisor, "start", start)
    monkeypatch.setattr(supervisor, "ended", ended)
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_ORDERS", "of-the-orders")
    monkeypatch.setenv(supervisor.DRIVER_QUOTA_VARIABLE, '{"disk_bytes": 5}')
    assert supervisor.run(directory, ["driver"]) == 9
    assert supervisor.DRIVER_QUOTA_VARIABLE not in os.environ, "the driver does not see it"
    assert supervisor.run(directory, ["missing"]) == supervisor.EXIT_CANNOT_RUN
    assert quotas == [{"disk_bytes": 5}, {}]
    assert (directory / LOG_FILE).read_text() == "*****\nthe driver cannot be started: no such program\n"


@pytest.mark.parametrize(
    ("code", "last", "expected"),
    [(0, None, 0), (3, None, 3), (-signal.SIGKILL, None, 137), (ASLEEP, 4, 4), (ASLEEP, -signal.SIGTERM, 143)],
)
def test_the_exit_code_is_as_of_a_shell_and_of_the_last_child_of_a_driver_that_slept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, last: int | None, expected: int
) -> None:
    steps: list[Any] = []
    driver, copying, log = (SimpleNamespace(), SimpleNamespace(join=steps.append), LogWriter(tmp_path))
    monkeypatch.setattr(supervisor, "waited", lambda *given: steps.append(given) or code)
    monkeypatch.setattr(supervisor, "orphans_ended", lambda given: {ASLEEP: last}[given])
    output: Any = Output(log, Mask({}))
    given: Any = (driver, copying, output, {"disk_bytes": 5}, [tmp_path])
    assert supervisor.ended(*given) == expected
    assert steps == [(driver, [tmp_path], 5, log), supervisor._LAST_WORDS_S]


class PlayedDriver:
    """A driver that ends after some looks at its disk."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.waits: list[float | None] = []
        self.is_killed = False

    def wait(self, timeout: float | None = None) -> int:
        self.waits.append(timeout)
        if timeout is not None and len(self.waits) <= self.looks:
            raise subprocess.TimeoutExpired("driver", timeout)
        return -signal.SIGKILL if self.is_killed else 4

    def kill(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize(
    ("used", "disk_bytes", "waits"),
    [
        ([], None, [None]),
        ([(2 << 20, 1 << 20)], 3 << 20, [supervisor.DISK_POLL_S] * 2),
        ([(0, 0), (3 << 20, 1)], 3 << 20, [*[supervisor.DISK_POLL_S] * 2, None]),
    ],
    ids=["without a quota", "within its quota", "beyond its quota"],
)
def test_a_driver_whose_files_take_too_much_space_is_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    used: list[tuple[int, int]],
    disk_bytes: int | None,
    waits: list[float | None],
) -> None:
    sizes = iter([size for both in used for size in both])
    monkeypatch.setattr(supervisor, "disk_use_bytes", lambda _: next(sizes))
    driver: Any = PlayedDriver(len(used))
    found = supervisor.waited(driver, [tmp_path, tmp_path], disk_bytes, LogWriter(tmp_path))
    assert (driver.waits, driver.is_killed) == (waits, waits[-1] is None and disk_bytes is not None)
    assert found == (supervisor.EXIT_DISK_FULL if driver.is_killed else 4)
    told = (tmp_path / LOG_FILE).read_text() if (tmp_path / LOG_FILE).exists() else ""
    assert told == ("the files of the job take 3 MiB, more than 3 MiB\n" if driver.is_killed else "")


@pytest.mark.parametrize("has_user", [True, False])
def test_the_processes_of_a_driver_are_limited_if_it_has_a_user_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_user: bool
) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(supervisor.resource, "setrlimit", lambda *limit: limits.append(limit))
    quota = {"cgroup": str(tmp_path), "processes": 6, "file_bytes": 7}
    supervisor.accept_quota(quota, has_user=has_user)
    assert (tmp_path / "cgroup.procs").read_text() == str(os.getpid())
    of_user = [(supervisor.resource.RLIMIT_NPROC, (6, 6))] if has_user else []
    assert limits == [*of_user, (supervisor.resource.RLIMIT_FSIZE, (7, 7))]
    supervisor.accept_quota({}, has_user=has_user)
    assert len(limits) == len(of_user) + 1
