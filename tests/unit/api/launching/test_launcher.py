"""The processes of drivers: started once, inspected, killed completely. Real processes, with a shell as the driver."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from keyscale.api.job_secrets import JobSecrets
from keyscale.api.launching import launcher as launching
from keyscale.api.launching import supervisor
from keyscale.api.launching.driver_log import LOG_FILE, LogWriter
from keyscale.api.launching.driver_start import DriverStart
from keyscale.api.launching.isolation import Isolation, JobUser
from keyscale.api.launching.launcher import Launcher, Seen
from keyscale.api.launching.processes import ProcessState, kill_all, strays_of
from keyscale.api.launching.supervisor import Output
from keyscale.api.libraries.job_libraries import JobLibraries
from keyscale.api.libraries.library_cache import PlacedLibraries
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt, Job, Revision
from keyscale.jobs.protocol.redaction import Mask
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.log_lines import FIELDS_VARIABLE
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUPERVISOR = Path(supervisor.__file__)
JOB_USER = 59_990  # used by this file alone


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(Settings(home=tmp_path, store_url="file:///store"))


@pytest.fixture
def attempt(launcher: Launcher) -> Attempt:
    return Attempt(job_id="job", number=1, parallelism=2, launched_on=launcher.place)


@pytest.fixture
def run(launcher: Launcher, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Runs a shell command as the driver of attempt 1, in the way of the launcher."""
    directory = tmp_path / "runs" / "job" / "1"
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str) -> subprocess.Popen[bytes]:
        launcher.prepare("job", 1)
        environment = {"PATH": os.defpath, "KEYSCALE_WORK_DIR": str(directory / "work")}
        if user := os.environ.get(supervisor.DRIVER_USER_VARIABLE):
            environment[supervisor.DRIVER_USER_VARIABLE] = user
        command = [sys.executable, "-I", str(SUPERVISOR), str(directory), "/bin/sh", "-c", script]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        started.append(process)
        return process

    yield start
    launcher.kill("job", 1)
    for process in started:
        process.kill()
        process.wait()


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_an_attempt_that_was_never_launched_is_unlaunched(launcher: Launcher) -> None:
    assert launcher.inspect(Attempt(job_id="job", number=1)).state is ProcessState.UNLAUNCHED
    noted = Attempt(job_id="job", number=1, launched_on=launcher.place)
    assert (
        launcher.inspect(noted).state is ProcessState.UNLAUNCHED
    )  # the launcher died after it recorded the launch and before it launched


def test_an_attempt_of_another_host_is_unknown(launcher: Launcher) -> None:
    away = Attempt(job_id="job", number=1, launched_on="elsewhere.example")
    assert launcher.inspect(away).state is ProcessState.UNKNOWN


ALIVE, DEAD, STARTING, UNKNOWN, UNLAUNCHED = (
    ProcessState.ALIVE, ProcessState.DEAD, ProcessState.STARTING, ProcessState.UNKNOWN, ProcessState.UNLAUNCHED
)  # fmt: skip


@pytest.mark.parametrize(
    ("supervised", "exit_code", "started", "columns", "expected"),
    [
        (True, None, None, {}, Seen(ALIVE)),
        (True, None, None, {"pid": 7, "host": "elsewhere"}, Seen(ALIVE)),
        (True, None, None, {"pid": 7}, Seen(STARTING, pids=frozenset({5, 7}))),
        (True, 3, None, {"pid": 7}, Seen(DEAD, 3)),
        (True, 0, None, {}, Seen(DEAD, 0)),
        (False, None, None, {"pid": 7}, Seen(DEAD)),
        (None, None, (29, None), {}, Seen(STARTING)),
        (None, None, (30, None), {}, Seen(DEAD)),
        (None, None, (1, 1), {}, Seen(DEAD)),
        (None, None, (1, 1), {"attached_at_ms": 1}, Seen(UNKNOWN)),
        (None, None, None, {"attached_at_ms": 1}, Seen(UNKNOWN)),
        (None, 3, None, {}, Seen(UNLAUNCHED)),
    ],
)
def test_the_state_of_a_run_follows_from_its_supervisor_its_exit_code_and_its_start(  # noqa: PLR0917
    launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
    supervised: bool | None,
    exit_code: int | None,
    started: tuple[int, int | None] | None,
    columns: dict[str, Any],
    expected: Seen,
) -> None:
    """`supervised`: whether the supervisor lives, None without one; `started`: seconds ago, and its end."""
    now_s, polled = time.monotonic(), list[int]()
    # The second attempt is a live rescale of the first run, which has its files.
    run_directory = launcher._run_directory("job", 1)
    found = None if supervised is None else SimpleNamespace(pid=5, is_alive=lambda: supervised)
    monkeypatch.setattr(launching, "read_supervisor", {run_directory: found}.__getitem__)
    monkeypatch.setattr(launching, "read_exit_code", {run_directory: exit_code}.__getitem__)
    monkeypatch.setattr(launching, "driver_state", lambda *pids: {(7, 5): STARTING}[pids])
    monkeypatch.setattr(launching.time, "monotonic", lambda: now_s)
    if started is not None:
        process: Any = SimpleNamespace(poll=lambda: started[1])
        launcher._launched["job", 1] = (now_s - started[0], process)
    else:
        launcher._launched["job", 2] = (now_s, SimpleNamespace(poll=lambda: polled.append(1)))
    attempt = Attempt(job_id="job", number=2, run=1, launched_on=launcher.place)
    for name, value in {"host": launcher.host, **columns}.items():
        setattr(attempt, name, value)
    assert launcher.inspect(attempt) == expected
    assert polled == [], "another run"


@pytest.mark.parametrize("taken_by", ["spare", "new", None])
def test_a_run_is_launched_once_its_record_is_stored_by_a_spare_or_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_by: str | None
) -> None:
    """`taken_by`: None if the supervisor cannot be started."""
    steps: list[Any] = []
    enclosures: Any = SimpleNamespace(
        variables=lambda run: {"QUOTA": f"of {run}"}, command=lambda run: ["enclosed", run]
    )
    launcher = Launcher(
        Settings(home=tmp_path, store_url="file:///store"), enclosures=enclosures, note_start=steps.append
    )
    process: Any = SimpleNamespace(poll=lambda: None)

    def supervised(*start: Any) -> Any:
        steps.append(start)
        if taken_by is None:
            raise OSError
        return process

    directory = tmp_path / "runs" / "job" / "4"
    own = DriverStart(directory, ["driver"], {"A": "b"})
    given = {**own.variables, "QUOTA": "of job-4", FIELDS_VARIABLE: '{"job": "flights"}'}
    expected = DriverStart(directory, ["driver"], given)
    monkeypatch.setattr(launcher, "_make_directories_of_job", lambda _, work, user: steps.append((work, user)))
    monkeypatch.setattr(launcher, "keep_record", lambda _, record: steps.append(record))
    monkeypatch.setattr(
        launcher, "start_of", lambda *of: own if of[1:] == ("revision", attempt, "brought", "grant") else None
    )
    monkeypatch.setattr(
        launcher.spares, "take", lambda start: process if start == expected and taken_by == "spare" else None
    )
    monkeypatch.setattr(launching, "start_supervised", supervised)
    attempt = Attempt(job_id="job", number=4, launched_on=launcher.place)
    arguments: Any = ("revision", attempt, "brought", "grant", "the record", {"job": "flights"})
    launcher.launch(Job(id="job", name="flights"), *arguments)
    begun = [(directory / "work", None), "the record", "spare" if taken_by == "spare" else "new"]
    cold = [(directory, ["driver"], given, ["enclosed", "job-4"])]
    assert steps == (begun if taken_by == "spare" else begun + cold)
    assert launcher.inspect(attempt).state is (DEAD if taken_by is None else STARTING)


@pytest.mark.parametrize(
    ("store_url", "has_user"), [("file:///of-the-job", True), ("s3://of-the-job", True), ("file:///of-the-job", False)]
)
def test_a_driver_is_started_with_the_run_the_store_and_the_secrets_of_its_own_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str, *, has_user: bool
) -> None:
    secrets = JobSecrets({f"KEYSCALE_JOB_SECRET_{name}": f"of-{name}" for name in ("ORDERS", "BILLS")})
    settings = Settings(home=tmp_path, store_url="file:///of-new-jobs", job_secrets=secrets)
    launcher, run = Launcher(settings), tmp_path / "runs" / "job" / "3"
    for number in (3, 5):
        launcher.prepare("job", number)
    user, reader = JobUser(JOB_USER, 7), JobUser(JOB_USER, 7, further_gids=(8,))
    readers = {(Path("/of-the-job"), "the grant", user): reader}
    monkeypatch.setattr(Isolation, "user", lambda _, holder: user if has_user and holder.id == "job" else None)
    monkeypatch.setattr(launching, "_reader_of_others", lambda *of: readers[of])
    monkeypatch.setattr(launcher, "place_libraries", lambda *of: {("brought", run): "the libraries"}[of])
    monkeypatch.setattr(launching, "driver_environment", lambda *given, **more: {"GIVEN": (given, more)})
    monkeypatch.setattr(launching, "driver_command", lambda *given, **more: [given, more])
    job, revision = Job(id="job", store_url=store_url), Revision(spec={"artifact_id": "a", "secrets": ["ORDERS"]})
    attempt = Attempt(job_id="job", number=5, run=3)
    brought: Any = "brought"
    granted: Any = "the grant"
    start = launcher.start_of(job, revision, attempt, brought, granted)
    expected_user = None if not has_user else reader if store_url.startswith("file:") else user
    given = (settings, (run / "token").read_text(), run / "work", os.environ, secrets.environment_of(["ORDERS"]))
    more = {"store_url": store_url, "user": expected_user, "libraries": "the libraries"}
    assert start.directory == run
    assert start.command == [(settings, job, revision, attempt, run / "work"), {"libraries": "the libraries"}]
    assert start.variables == {
        "GIVEN": (given, more),
        "KEYSCALE_ATTEMPT": "job:5",
        "KEYSCALE_JOB_STORE_URL": store_url,
    }


@pytest.mark.parametrize(
    ("user", "master", "store"),
    [
        (JobUser(JOB_USER, 7), "local", "file://{}/objects"),
        (None, "local", "file://{}/objects"),
        (JobUser(JOB_USER, 7), "local", "s3://bucket"),
        (JobUser(JOB_USER, 7), "spark://master:7077", "file://{}/objects"),
    ],
    ids=["a user of its own", "the control plane's user", "a remote store", "a cluster"],
)
def test_the_directories_that_a_driver_writes_are_its_users_and_only_its_objects_may_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: JobUser | None, master: str, store: str
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(launching, "make_directory", lambda path, **how: steps.append(("made", path, how)))
    monkeypatch.setattr(launching, "give_to", lambda *of: steps.append(("given", *of)))
    monkeypatch.setattr(launching, "let_enter", lambda path: steps.append(("entered", path)))
    launcher = Launcher(Settings(home=tmp_path, store_url="file:///of-new-jobs", spark_master=master))
    run, objects = tmp_path / "runs" / "job" / "1", tmp_path / "objects"
    launcher._make_directories_of_job(Job(id="job", store_url=store.format(tmp_path)), run / "work", user)
    expected: list[Any] = [("made", run / "tmp", {"owner": user})]
    if master == "local":
        own = [run / "work", run.parent / "state", *([objects / "job"] if "file" in store else [])]
        expected += [("entered", objects)] if user is not None and "file" in store else []
        owner = user or JobUser(os.geteuid(), os.getegid())
        for directory in own:
            expected += [] if user is None else [("given", directory, user)]
            expected.append(("made", directory, {"owner": owner, "is_shared": directory == objects / "job"}))
    assert steps == expected


SPARE = "a" * 32


@pytest.mark.parametrize("spare", [SPARE, ""])
def test_a_run_ends_with_its_spare_its_users_strays_and_its_enclosure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: str
) -> None:
    steps: list[Any] = []
    enclosures: Any = SimpleNamespace(remove=lambda run: steps.append(("enclosure", run)))
    launcher = Launcher(Settings(home=tmp_path, store_url="file:///store"), enclosures=enclosures)
    run = tmp_path / "runs" / "job" / "4"
    run.mkdir(parents=True)
    (run / "process.json").write_text(json.dumps({"pid": 5, "started_at_s": 1.0, "spare": spare}))
    work = tmp_path / "spares" / spare / "work" if spare else run / "work"
    owners = {work: JOB_USER} if spare else {}
    monkeypatch.setattr(launching, "owner_of", owners.get)
    monkeypatch.setattr(launching, "processes_of", lambda *of: ("processes", *of))
    monkeypatch.setattr(launching, "strays_of", lambda uid: ("strays", uid))
    monkeypatch.setattr(launching, "kill_all", steps.append)
    monkeypatch.setattr(launcher.spares, "remove", lambda name: steps.append(("spare", name)))
    process: Any = SimpleNamespace(poll=lambda: None)
    launcher._launched = {("job", 4): (1.0, process), ("job", 5): (1.0, process), ("other", 4): (1.0, process)}
    launcher.clean_up("job", 4)
    ended = [("processes", run, JOB_USER, work), ("strays", JOB_USER)] if spare else [("processes", run, None, work)]
    assert steps == [*ended, ("enclosure", "job-4"), ("spare", spare)]
    assert set(launcher._launched) == {("job", 5), ("other", 4)}, "other runs are still watched"
    steps.clear()
    (run / LOG_FILE).write_bytes(b"x" * 100)
    size_bytes = (run / "process.json").stat().st_size + 100
    assert (launcher.remove_run("job", 4), steps, run.exists()) == (size_bytes, ended, False)


def test_an_attempt_is_of_this_host_from_any_home(launcher: Launcher) -> None:
    places = [launcher.place, f"{launcher.host}:/another-home", "elsewhere:/home", None]
    found = [launcher.is_of_this_host(Attempt(job_id="job", number=1, launched_on=place)) for place in places]
    assert found == [True, True, False, False]


def test_supervisors_that_have_ended_are_collected_before_the_processes_are_listed(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    process: Any = SimpleNamespace(poll=lambda: steps.append("collected"))
    launcher._launched = {("job", 1): (1.0, process), ("job", 2): (1.0, None), ("job", 3): (1.0, process)}
    monkeypatch.setattr(launching.psutil, "pids", lambda: steps.append("listed") or [5, 6])
    assert launcher.living() == {5, 6}
    assert steps == ["collected", "collected", "listed"]


def test_a_run_gets_its_libraries_and_the_libraries_of_other_runs_stay(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = PlacedLibraries((tmp_path / "a" / "site",), (), (tmp_path / "b.jar",), ("a", "b"))
    kept: list[Any] = []
    monkeypatch.setattr(launcher.libraries, "place", lambda files: {("file",): placed}[files])
    monkeypatch.setattr(launcher.libraries, "sweep", kept.append)
    rules: Any = SimpleNamespace(
        jars_of=lambda packages: {("kafka",): [tmp_path / "k.jar", tmp_path / "b.jar"]}[packages]
    )
    monkeypatch.setattr(launcher, "_settings", replace(launcher._settings, jar_rules=rules))
    for run, sha256s in (("other/1", "c"), ("other/2", "d\nc"), ("third/1", "")):
        directory = launcher._settings.runs_directory / run
        directory.mkdir(parents=True)
        (directory / "libraries").write_text(sha256s)
    run = launcher._run_directory("job", 1)
    run.mkdir(parents=True)
    found = launcher.place_libraries(JobLibraries(("file",), ("kafka",)), run)  # type: ignore[arg-type]
    assert found == replace(placed, jars=(tmp_path / "b.jar", tmp_path / "k.jar")), "each jar once"
    assert (run / "libraries").read_text() == "a\nb"
    assert kept == [{"a", "b", "c", "d"}]


def log_of(launcher: Launcher, attempt: int) -> bytes:
    with launcher.log("job", attempt) as log:
        return log.read(log.begin, log.end)


def test_a_driver_that_runs_is_alive_and_its_exit_code_is_known_afterwards(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = run(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo a last word; exit 3")
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.ALIVE)
    (tmp_path / "go").touch()
    assert process.wait(30) == 3
    seen = launcher.inspect(attempt)
    assert (seen.state, seen.exit_code) == (ProcessState.DEAD, 3)
    assert log_of(launcher, 1) == b"a last word\n"


def test_a_second_supervisor_of_one_attempt_does_nothing(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    first = run("echo first; exec sleep 600")
    wait_until(lambda: log_of(launcher, 1))
    second = run("echo second; exec sleep 600")
    assert second.wait(30) == 0
    assert first.poll() is None
    assert log_of(launcher, 1) == b"first\n"
    assert launcher.inspect(attempt).state is ProcessState.ALIVE


def test_a_killed_supervisor_is_noticed_and_the_processes_that_it_leaves_are_killed(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = run("sleep 600 & exec sleep 600")
    wait_until(lambda: len(children(process)) == 2)
    left = children(process)
    process.kill()
    process.wait()
    assert launcher.inspect(attempt).state is ProcessState.DEAD
    launcher.kill("job", 1)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in left)


def test_a_kill_reaches_workers_that_have_left_the_process_group_and_spares_other_processes(
    launcher: Launcher, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    python = f"{sys.executable} -c 'import os, time; os.setpgid(0, 0); time.sleep(600)'"
    process = run(f"{python} & exec sleep 600")
    worker = wait_until(
        lambda: next((child for child in children(process) if os.getpgid(child.pid) == child.pid), None)
    )
    launcher.kill("job", 1)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_the_process_that_asked_for_work_decides(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = run("sleep 600 & wait")
    driver = wait_until(lambda: next((c for c in children(process) if c.name() == "sleep"), None))
    attempt.pid, attempt.host = driver.pid, launcher.host
    assert launcher.inspect(attempt).state is ProcessState.ALIVE
    driver.send_signal(signal.SIGSTOP)
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.SUSPENDED)
    driver.kill()
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.DEAD)


def test_a_process_number_that_was_given_to_another_process_is_not_mistaken_for_the_driver(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    run("exec sleep 600")
    attempt.pid, attempt.host = os.getpid(), launcher.host
    wait_until(lambda: launcher.inspect(attempt).state is ProcessState.DEAD)


def test_a_token_is_made_once_and_only_its_owner_can_read_it(launcher: Launcher, tmp_path: Path) -> None:
    assert launcher.prepare("job", 1) == launcher.prepare("job", 1)
    assert launcher.prepare("job", 2) != launcher.prepare("job", 1)
    token = tmp_path / "runs" / "job" / "1" / "token"
    assert token.stat().st_mode & 0o077 == 0
    launcher.clean_up("job", 1)
    assert not token.exists()


def test_a_run_is_of_the_database_whose_key_has_made_its_token(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, store_url="file:///store")
    own, other = (Launcher(settings, read_key=lambda key=key: key) for key in ("own", "other"))
    for number in (1, 2):
        own.prepare("job", number)
    assert (own.is_of_this_database("job", 1), other.is_of_this_database("job", 1)) == (True, False)
    tokens = [tmp_path / "runs" / "job" / str(number) / "token" for number in (1, 2)]
    tokens[0].write_text(tokens[1].read_text())
    assert (own.is_of_this_database("job", 1), own.is_of_this_database("job", 2)) == (False, True)
    tokens[1].unlink()
    assert not own.is_of_this_database("job", 2)


def test_the_files_that_a_killed_driver_leaves_are_deleted_with_its_run(launcher: Launcher, tmp_path: Path) -> None:
    launcher.prepare("job", 1)
    run = tmp_path / "runs" / "job" / "1"
    for part in ("work", "tmp"):
        (run / part / "spark-left").mkdir(parents=True)
        (run / part / "spark-left" / "file").touch()
    (run / "log").touch()
    Launcher(launcher._settings).clean_up("job", 1)  # of a control plane that did not launch it
    assert [path.name for path in run.iterdir()] == ["log"]


def test_a_run_on_a_disk_that_cannot_be_written_to_is_cleaned_up_as_far_as_possible(
    launcher: Launcher, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "job" / "1"
    (run / "token" / "kept").mkdir(parents=True)  # cannot be unlinked, even by root
    (run / "libraries").touch()
    (run / "work").mkdir()
    launcher.clean_up("job", 1)
    assert [path.name for path in run.iterdir()] == ["token"], "a cancelled job ends nevertheless"


def test_a_missing_program_is_a_dead_driver_with_a_reason(launcher: Launcher, attempt: Attempt, tmp_path: Path) -> None:
    launcher.prepare("job", 1)
    directory = tmp_path / "runs" / "job" / "1"
    ran = subprocess.run([sys.executable, "-I", str(SUPERVISOR), str(directory), "/no/such/program"], check=False)
    assert ran.returncode == supervisor.EXIT_CANNOT_RUN
    assert launcher.inspect(attempt).exit_code == supervisor.EXIT_CANNOT_RUN
    assert b"cannot be started" in log_of(launcher, 1)


def test_the_spares_and_strays_of_a_deleted_jobs_user_end(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "job" / "state").mkdir(parents=True)
    steps: list[Any] = []
    monkeypatch.setattr(launching, "owner_of", {tmp_path / "runs" / "job" / "state": JOB_USER}.get)
    monkeypatch.setattr(launcher.spares, "end_of_user", lambda uid: steps.append(("spares", uid)))
    monkeypatch.setattr(launching, "strays_of", lambda uid: ("strays", uid))
    monkeypatch.setattr(launching, "kill_all", steps.append)
    launcher.forget("job")
    assert steps == [("spares", JOB_USER), ("strays", JOB_USER)]
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_deleted_jobs_local_files_are_deleted_on_every_disk(launcher: Launcher, tmp_path: Path) -> None:
    disk = tmp_path / "disk" / "job" / "attempt-1" / "totals" / "subtask-0"
    disk.mkdir(parents=True)
    (disk / "file").touch()
    link = launcher._settings.runs_directory / "job" / "state" / "job" / "attempt-1" / "totals" / "subtask-0"
    link.parent.mkdir(parents=True)
    link.symlink_to(disk)
    launcher.forget("job")
    assert not disk.exists()
    assert not (launcher._settings.runs_directory / "job").exists()


@pytest.mark.parametrize("way", ["to another place", "to another job", "through another job", "of a name alone"])
def test_a_link_of_a_deleted_job_is_followed_only_to_the_jobs_own_directory(
    launcher: Launcher, tmp_path: Path, way: str
) -> None:
    runs = launcher._settings.runs_directory
    own = Path("job", "attempt-1", "totals", "subtask-0")
    other = Path("other", *own.parts[1:])
    place = tmp_path / ("precious" if way == "to another place" else "disk" / other)
    place.mkdir(parents=True)
    (place / "file").touch()
    link = runs / "job" / "state" / own
    if way == "through another job":
        inner = runs / "other" / "state" / other
        inner.parent.mkdir(parents=True)
        inner.symlink_to(place)
        (runs / "job" / "state").mkdir(parents=True)
        for name in ("other", "job"):
            (runs / "job" / "state" / name).symlink_to(runs / "other" / "state" / "other")
    else:
        link.parent.mkdir(parents=True)
        if way == "of a name alone":
            (tmp_path / "disk" / "job").symlink_to(tmp_path / "disk" / "other")
            link.symlink_to(tmp_path / "disk" / own)
        else:
            link.symlink_to(place)
    launcher.forget("job")
    assert (place / "file").exists()
    assert not (runs / "job").exists()


def test_the_log_shows_no_secret_of_the_drivers_environment(launcher: Launcher, tmp_path: Path) -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END KEY-----\n"
    secrets = {"KEYSCALE_ATTEMPT_TOKEN": "of-this-attempt", "KEYSCALE_JOB_SECRET_DB": "pg://me:hunter2hunter2@db/x"}
    secrets["KEYSCALE_JOB_SECRET_KEY"] = key
    directory = tmp_path / "runs" / "job" / "1"
    launcher.prepare("job", 1)
    environment = {"PATH": os.defpath, **secrets}
    script = r"printf 'a \xff b hunter2'; sleep 0.1; printf 'hunter2 c\n'; env; printf 'a last word'"
    command = [sys.executable, "-I", str(SUPERVISOR), str(directory), "/bin/sh", "-c", script]
    subprocess.run(command, env=environment, check=True)
    log = (directory / "driver.log").read_bytes()
    assert b" b ***** c\n" in log
    assert log.endswith(b"a last word")
    for secret in (b"of-this-attempt", b"hunter2", b"MIIEvQIBADANBgkqhkiG9w0B"):
        assert secret not in log
    assert (directory / "driver.log").stat().st_mode & 0o077 == 0


def test_a_process_that_the_driver_leaves_behind_does_not_keep_its_exit_code_back(
    launcher: Launcher, attempt: Attempt, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    run("sleep 100 & exit 4")
    wait_until(lambda: launcher.inspect(attempt).exit_code == 4)


def test_a_kill_reaches_processes_that_have_left_the_session(
    launcher: Launcher, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = run("setsid sleep 612 & exec sleep 600")
    [stray] = wait_until(lambda: [child for child in children(process) if child.cmdline() == ["sleep", "612"]])
    assert os.getsid(stray.pid) == stray.pid != process.pid
    launcher.kill("job", 1)
    assert not stray.is_running() or stray.status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as another user")
def test_processes_of_a_user_are_found_unless_a_supervisor_watches_them(
    run: Callable[[str], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(supervisor.DRIVER_USER_VARIABLE, f"{JOB_USER}:{JOB_USER}")
    process = run("env -i setsid sleep 612 & exec sleep 600")
    wait_until(lambda: {child.name() for child in children(process)} == {"sleep"} and len(children(process)) > 1)
    assert [stray.cmdline() for stray in strays_of(JOB_USER)] == [["sleep", "612"]]
    process.kill()
    process.wait()
    left = wait_until(lambda: [one for one in strays_of(JOB_USER) if one.cmdline() == ["sleep", "600"]])
    kill_all([*left, *strays_of(JOB_USER)])
    assert strays_of(JOB_USER) == []


def test_a_secret_is_masked_however_its_writer_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_CHUNK_BYTES", 1)
    pausing = SimpleNamespace(register=lambda *_: None, poll=lambda _: [])  # the writer pauses after each byte
    monkeypatch.setattr(supervisor.select, "poll", lambda: pausing)
    source, writer = os.pipe()
    os.write(writer, "a key, öf-the-orders, and two\nlines, äöf\xff\nöf".encode())
    os.close(writer)
    mask = Mask({"A_TOKEN": "öf-the-orders", "B_TOKEN": "two\nlines"})
    supervisor.copy_masked(source, Output(LogWriter(tmp_path), mask))
    os.close(source)
    assert (tmp_path / LOG_FILE).read_text() == "a key, *****, and *****, äöf\xff\nöf"


def test_output_is_copied_from_a_descriptor_above_1023(tmp_path: Path) -> None:
    source, writer = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        high = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 1024)
        os.write(writer, b"a line, and its beginning")
        os.close(writer)
        supervisor.copy_masked(high, Output(LogWriter(tmp_path), Mask({})))
        os.close(source)
        os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / LOG_FILE).read_text() == "a line, and its beginning"


def test_a_line_that_pauses_is_written_without_what_may_be_the_beginning_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PAUSE_S", 0.01)
    source, writer = os.pipe()
    file = tmp_path / LOG_FILE
    arguments = (source, Output(LogWriter(tmp_path), Mask({"A_TOKEN": "of-the-orders"})))
    copying = threading.Thread(target=supervisor.copy_masked, args=arguments, daemon=True)
    copying.start()
    os.write(writer, b"a key, of-the-")
    wait_until(lambda: file.read_bytes() == b"a key, ", what="the line without its end")
    os.write(writer, b"others")
    wait_until(lambda: file.read_bytes() == b"a key, of-the-others", what="the rest of the line")
    os.close(writer)
    copying.join()
    os.close(source)


def test_the_texts_of_an_attempt_may_have_the_stores_and_its_jobs_secrets_and_its_token(
    tmp_path: Path,
) -> None:
    of_store = {"AWS_SECRET_ACCESS_KEY": "of-the-store"}
    secrets = {f"KEYSCALE_JOB_SECRET_{name}": f"of-the-{name.lower()}" for name in ("ORDERS", "BILLS", "OTHER")}
    settings = Settings(
        home=tmp_path, store_url="file:///store", store_environment=of_store, job_secrets=JobSecrets(secrets)
    )
    launcher = Launcher(settings)
    revisions = [Revision(spec=JobSpec(artifact_id="a", secrets=[name]).given()) for name in ("ORDERS", "BILLS")]
    named = {name: value for name, value in secrets.items() if "OTHER" not in name}
    assert launcher.secrets_of("job", 1, revisions) == {**of_store, **named}
    launcher.prepare("job", 1)
    token = launcher.secrets_of("job", 1, []).pop("KEYSCALE_ATTEMPT_TOKEN")
    assert token == (tmp_path / "runs" / "job" / "1" / "token").read_text().strip()
