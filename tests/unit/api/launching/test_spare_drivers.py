"""Spares and their supervisors. Real processes, with a small program as the driver."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from keyscale.api.launching import spare_drivers, spare_supervisor
from keyscale.api.launching.driver_start import DriverStart, StartPattern
from keyscale.api.launching.isolation import JobUser
from keyscale.api.launching.launcher import Launcher
from keyscale.api.launching.processes import ProcessState, read_supervisor
from keyscale.api.launching.spare_drivers import Spare, SpareDrivers
from keyscale.api.launching.spare_supervisor import Driver
from keyscale.api.launching.supervisor import DRIVER_USER_VARIABLE
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.jobs.protocol.spare import READY, SPARE_VARIABLE, TAKEN
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

DRIVER = """
import json, os, socket, sys, time
def run(variables):
    secret = {**os.environ, **variables}["KEYSCALE_JOB_SECRET_KEY"]
    print(sys.argv[1], variables["KEYSCALE_ATTEMPT"], variables["KEYSCALE_WORK_DIR"], secret, flush=True)
    time.sleep(600)
if "KEYSCALE_SPARE" not in os.environ:
    sys.argv[1] = "cold"
    run(os.environ)
connection = socket.socket(socket.AF_UNIX)
connection.connect("assignment")
print("warms up", flush=True)
connection.sendall(b"ready\\n")
line = connection.makefile("rb").readline()
if line and sys.argv[1] == "warm":
    connection.sendall(b"taken\\n")
    run(json.loads(line))
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    launcher = Launcher(Settings(home=tmp_path, store_url="file:///store"))
    take, taken = launcher.spares.take, []

    def noted(start: DriverStart) -> subprocess.Popen[bytes] | None:
        taken.append(process := take(start))
        return process

    monkeypatch.setattr(launcher.spares, "take", noted)
    yield launcher
    launcher.spares.end_all()

    def have_ended() -> bool:
        for number in (1, 2):
            launcher.kill("job", number)  # again: a spare registers its run some time after it was taken
        return all(process.poll() is not None for process in taken if process is not None)

    wait_until(have_ended)


def start_of(launcher: Launcher, home: Path, number: int = 1, driver: str = "warm") -> DriverStart:
    launcher.prepare("job", number)
    directory = home / "runs" / "job" / str(number)
    for name in ("work", "tmp"):
        (directory / name).mkdir(exist_ok=True)
    variables = {
        "PATH": os.defpath,
        "KEYSCALE_ATTEMPT": f"job:{number}",
        "KEYSCALE_WORK_DIR": f"{directory}/work",
        f"{JOB_SECRET_PREFIX}KEY": "of-the-orders",
    }
    return DriverStart(directory, [sys.executable, "-c", DRIVER, driver], variables)


def waiting(launcher: Launcher, start: DriverStart) -> psutil.Process:
    """Starts a spare, waits until it is warm, and returns its supervisor."""
    assert start.pattern is not None
    launcher.spares.start(start.pattern)
    [spare] = launcher.spares.living()
    wait_until(lambda: spare.is_ready, what="a warm spare")
    return psutil.Process(spare.process.pid)


def log_of(start: DriverStart) -> str:
    """Returns the log of a run, once the driver has said what it runs."""
    file = start.directory / "driver.log"
    return wait_until(lambda: file.exists() and "job:" in file.read_text() and file.read_text(), what="the run's log")


def test_a_spare_takes_a_run_and_its_supervisor_becomes_the_runs(launcher: Launcher, tmp_path: Path) -> None:
    start = start_of(launcher, tmp_path)
    supervisor = waiting(launcher, start)
    [driver] = supervisor.children()
    assert "hidden" not in driver.environ().values()
    process = launcher.spares.take(start)
    assert process is not None
    spare = tmp_path / "spares" / spare_of(start)
    assert log_of(start) == f"warm job:1 {spare}/work *****\n", "the log begins with the run, and masks its secret"
    attempt = Attempt(job_id="job", number=1, launched_on=launcher.place, pid=driver.pid, host=launcher.host)
    assert launcher.inspect(attempt).state is ProcessState.ALIVE
    assert launcher.spares.living() == []
    assert launcher.spares.take(start) is None, "a spare serves one run"
    launcher.sweep_spares()
    assert driver.is_running(), "a spare with a run is not swept"
    driver.kill()
    assert process.wait(30) == 128 + signal.SIGKILL
    assert launcher.inspect(attempt).exit_code == 128 + signal.SIGKILL
    launcher.clean_up("job", 1)
    assert not spare.exists()


def spare_of(start: DriverStart) -> str:
    """Returns the name of the spare that a run has taken."""
    registered = wait_until(lambda: read_supervisor(start.directory), what="the registration")
    assert registered.spare
    return registered.spare


def test_a_run_starts_its_own_driver_if_the_spares_driver_ends(launcher: Launcher, tmp_path: Path) -> None:
    start = start_of(launcher, tmp_path, driver="ends")
    supervisor = waiting(launcher, start)
    [first] = supervisor.children()
    assert launcher.spares.take(start) is not None
    log = log_of(start)
    assert log.splitlines() == [
        "the spare driver does not answer; another driver is started",
        f"cold job:1 {start.directory}/work *****",
    ]
    assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE
    launcher.kill("job", 1)
    wait_until(lambda: not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE)


def test_a_run_that_comes_when_the_spares_driver_has_just_died_is_not_lost(launcher: Launcher, tmp_path: Path) -> None:
    start = start_of(launcher, tmp_path)
    supervisor = waiting(launcher, start)
    [driver] = supervisor.children()
    supervisor.suspend()  # so that it sees both at once
    driver.kill()
    assert launcher.spares.take(start) is not None
    supervisor.resume()
    assert f"cold job:1 {start.directory}/work" in log_of(start)


def test_only_a_warm_driver_has_to_answer_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_supervisor, "TAKEN_WITHIN_S", 0.05)
    lives = SimpleNamespace(poll=lambda: None)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        for is_ready, said, takes in ((True, b"", False), (True, TAKEN, True), (False, READY + TAKEN, True)):
            ours, drivers = socket.socketpair()
            with ours, drivers:
                spare = Driver(lives, threading.current_thread(), listener, ours, is_ready=is_ready)
                speaking = threading.Timer(0.2 if not is_ready else 0.0, drivers.sendall, [said])
                speaking.start()
                assert spare.takes({}) is takes
                speaking.join()


def test_a_process_that_has_ended_before_it_is_looked_at_is_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: int) -> int:
        raise ProcessLookupError

    monkeypatch.setattr(os, "getsid", gone)
    lives = SimpleNamespace(poll=lambda: None)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as theirs:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        theirs.connect(str(tmp_path / "s"))
        spare = Driver(lives, threading.current_thread(), listener)
        spare.accept()
        assert spare.connection is None


def test_a_run_that_another_supervisor_has_ends_the_spare(launcher: Launcher, tmp_path: Path) -> None:
    start = start_of(launcher, tmp_path)
    supervisor = waiting(launcher, start)
    (start.directory / "process.json").write_text('{"pid": 1, "started_at_s": 0.0}')
    process = launcher.spares.take(start)
    assert process is not None
    assert process.wait(30) == 0
    assert not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE
    assert not (start.directory / "driver.log").exists()


def test_two_runs_and_one_spare_give_one_run_a_driver_of_its_own(launcher: Launcher, tmp_path: Path) -> None:
    first, second = start_of(launcher, tmp_path, 1), start_of(launcher, tmp_path, 2)
    waiting(launcher, first)
    assert launcher.spares.take(second) is not None
    assert launcher.spares.take(first) is None


def test_a_spare_whose_supervisor_was_killed_takes_no_run(launcher: Launcher, tmp_path: Path) -> None:
    start = start_of(launcher, tmp_path)
    supervisor = waiting(launcher, start)
    [driver] = supervisor.children()
    [spare] = launcher.spares.living()
    supervisor.kill()
    wait_until(lambda: not spare.is_alive)
    assert launcher.spares.take(start) is None
    assert launcher.spares.living() == []
    assert launcher.spares.failures == 1
    wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE)


class PlayedSupervisor:
    """The supervisor of a spare, which takes its run unless its pipe is broken."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken, self.returncode, self.said = is_broken, None, b""
        self.stdin, self.ended = self, list[str]()

    def poll(self) -> int | None:
        return self.returncode

    def write(self, line: bytes) -> None:
        if self.is_broken:
            raise BrokenPipeError
        self.said += line

    def close(self) -> None:
        self.ended.append("close")

    def kill(self) -> None:
        self.ended.append("kill")
        self.returncode = -signal.SIGKILL

    def wait(self) -> None:
        self.ended.append("wait")


def test_a_spare_that_cannot_take_its_run_is_ended_and_the_next_one_takes_the_run(tmp_path: Path) -> None:
    start = DriverStart(
        tmp_path / "runs" / "job" / "1", ["driver"], {"KEYSCALE_WORK_DIR": f"{tmp_path}/runs/job/1/work"}
    )
    removed: list[str] = []
    spares = SpareDrivers(tmp_path, cast("Any", SimpleNamespace(remove=removed.append)))
    pattern = start.pattern
    assert pattern is not None
    # Warm ones come first, then the oldest; a spare with another pattern takes nothing.
    played = {"a": (5.0, True), "b": (2.0, False), "c": (7.0, True), "d": (1.0, False)}
    supervisors = {letter: PlayedSupervisor(is_broken=letter == "a") for letter in played}
    for letter, (started_s, is_warm) in played.items():
        directory = tmp_path / (letter * 32)
        directory.mkdir()
        if is_warm:
            (directory / "ready").touch()
        own = pattern if letter != "d" else StartPattern(("other",), frozenset())
        spares._spares.append(Spare(directory.name, directory, own, cast("Any", supervisors[letter]), started_s))
    assert spares.take(start) is supervisors["c"]
    assert json.loads(supervisors["c"].said) == {
        "run": str(start.directory),
        "command": ["driver"],
        "variables": start.variables,
        "of_spare": {"KEYSCALE_WORK_DIR": f"{tmp_path}/{32 * 'c'}/work"},
    }
    assert (supervisors["a"].ended, removed) == (["kill", "wait", "close"], [32 * "a"])
    assert not (tmp_path / (32 * "a")).exists()
    assert spares.take(start) is supervisors["b"]
    assert spares.take(start) is None
    assert [spare.name for spare in spares.living()] == [32 * "d"]
    supervisors["d"].returncode = 3
    assert (spares.living(), spares.failures) == ([], 1), "a spare that ends by itself is noticed once"
    assert (spares.living(), spares.failures, removed[1:]) == ([], 1, [32 * "d"])


def test_the_spares_of_a_deleted_jobs_user_end_and_all_others_wait_on(tmp_path: Path) -> None:
    spares = SpareDrivers(tmp_path, cast("Any", SimpleNamespace(remove=lambda _: None)))
    users = {"a": "5:6:7", "b": "6:5:7", "c": None, "d": "5:5"}
    for letter, user in users.items():
        pattern = StartPattern((), frozenset() if user is None else frozenset({(DRIVER_USER_VARIABLE, user)}))
        directory = tmp_path / (letter * 32)
        directory.mkdir()
        spares._spares.append(Spare(directory.name, directory, pattern, cast("Any", PlayedSupervisor()), 0.0))
    spares.end_of_user(5)
    assert [spare.name[0] for spare in spares.living()] == ["b", "c"]
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["b", "c"]
    spares.sweep({"b" * 32})
    assert [path.name[0] for path in tmp_path.iterdir()] == ["b"]
    spares.end_all()
    assert (spares.living(), spares.has_directories) == ([], False)


@pytest.mark.parametrize("user", ["5:6:7", None])
def test_a_spare_starts_in_directories_of_its_user_with_a_quota_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str | None
) -> None:
    steps: list[Any] = []
    enclosures: Any = SimpleNamespace(
        variables=lambda name: {"QUOTA": f"of {name}"}, command=lambda name: ["enclosed", name]
    )
    supervisor: Any = PlayedSupervisor()
    monkeypatch.setattr(spare_drivers, "make_directory", lambda path, **how: steps.append((path, how)))
    monkeypatch.setattr(spare_drivers, "start_spare", lambda *given: steps.append(given) or supervisor)
    monkeypatch.setattr(spare_drivers, "time", SimpleNamespace(monotonic=lambda: 7.0))
    name = 32 * "a"
    monkeypatch.setattr(spare_drivers, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=name)))
    of_user = {} if user is None else {DRIVER_USER_VARIABLE: user}
    pattern = StartPattern(("driver", "-v"), frozenset({"A": "b", **of_user}.items()))
    spares, directory = SpareDrivers(tmp_path, enclosures), tmp_path / name
    spares.start(pattern)
    owner = None if user is None else JobUser(5, 6)
    variables = {"A": "b", **of_user, SPARE_VARIABLE: "1", "QUOTA": f"of {name}"}
    assert steps == [
        (tmp_path, {"enter": user is not None}),
        (directory, {"enter": user is not None}),
        (directory / "work", {"owner": owner}),
        (directory / "tmp", {"owner": owner}),
        (directory, ["driver", "-v"], variables, ["enclosed", name]),
    ]
    assert spares._spares == [Spare(name, directory, pattern, supervisor, 7.0)]


def test_spares_that_end_by_themselves_are_counted_until_one_is_warm_and_only_the_named_one_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares = SpareDrivers(tmp_path, cast("Any", SimpleNamespace(remove=lambda _: None)))
    monkeypatch.setattr(spare_drivers, "time", SimpleNamespace(monotonic=lambda: 7.0))
    supervisors = {letter: PlayedSupervisor() for letter in "abcd"}
    for letter, supervisor in supervisors.items():
        directory = tmp_path / (letter * 32)
        directory.mkdir()
        pattern = StartPattern((letter,), frozenset())
        spares._spares.append(Spare(directory.name, directory, pattern, cast("Any", supervisor), 0.0))
    for letter in "ab":
        supervisors[letter].returncode = 1
        spares.living()
    assert (spares.failures, spares.failed_at_s) == (2, 7.0)
    (tmp_path / (32 * "d") / "ready").touch()
    spares.living()
    assert spares.failures == 0
    spares.end(32 * "c")
    assert (supervisors["c"].ended[0], supervisors["d"].ended) == ("kill", [])
    assert [spare.name[0] for spare in spares.living()] == ["d"]


def test_spares_end_with_their_control_plane(launcher: Launcher, tmp_path: Path) -> None:
    start = start_of(launcher, tmp_path)
    supervisor = waiting(launcher, start)
    [driver] = supervisor.children()
    [spare] = launcher.spares.living()
    assert spare.process.stdin is not None
    spare.process.stdin.close()  # as the kernel does for a control plane that has ended
    assert spare.process.wait(30) == 0
    wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE)


def test_what_an_earlier_control_plane_has_left_is_swept(launcher: Launcher, tmp_path: Path) -> None:
    start = start_of(launcher, tmp_path)
    supervisor = waiting(launcher, start)
    Launcher(Settings(home=tmp_path, store_url="file:///store")).sweep_spares()
    wait_until(lambda: not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE)
    assert list((tmp_path / "spares").iterdir()) == []
