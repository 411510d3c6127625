"""Which processes belong to a run, and in which state they are. Played processes, without any real one."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from keyscale.api.launching import processes
from keyscale.api.launching.processes import ProcessState, SupervisorProcess

if TYPE_CHECKING:
    from pathlib import Path

JOB_UID, OTHER_UID = 501, 502


class Played:
    """A process of the host.

    `work` is the work directory in its environment; None: its environment cannot be read. So is the user `uid`.
    """

    def __init__(
        self, pid: int, session: int, uid: int | None, work: str | None = "", status: str = psutil.STATUS_RUNNING
    ) -> None:
        self.pid, self.session, self.uid, self.work, self._status = pid, session, uid, work, status

    def environ(self) -> dict[str, str]:
        if self.work is None:
            raise psutil.AccessDenied(self.pid)
        return {"KEYSCALE_WORK_DIR": self.work} if self.work else {}

    def uids(self) -> Any:
        if self.uid is None:
            raise psutil.AccessDenied(self.pid)
        return type("Ids", (), {"real": self.uid, "effective": 0})

    def status(self) -> str:
        return self._status

    def create_time(self) -> float:
        return 1000.0


class PlayedHost:
    """The processes of a host, by their ids."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: Played) -> None:
        self.found = {each.pid: each for each in (*found, Played(os.getpid(), 1, JOB_UID, work="all"))}
        monkeypatch.setattr(processes.psutil, "process_iter", lambda: list(self.found.values()))
        monkeypatch.setattr(processes.psutil, "Process", self.process)
        monkeypatch.setattr(processes.os, "getsid", lambda pid: self.process(pid).session)

    def process(self, pid: int) -> Played:
        if pid not in self.found:
            raise psutil.NoSuchProcess(pid)
        return self.found[pid]


@pytest.mark.parametrize(
    ("uid", "spare", "expected"),
    [(JOB_UID, False, [11, 12, 14]), (JOB_UID, True, [11, 12, 13, 14]), (None, False, [12]), (None, True, [12, 13])],
)
def test_the_processes_of_a_run_have_its_work_directory_or_are_its_users_in_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int | None, spare: bool, expected: list[int]
) -> None:
    run, of_spare = tmp_path / "runs" / "job" / "1", tmp_path / "spares" / "s" / "work"
    PlayedHost(
        monkeypatch,
        Played(11, 10, JOB_UID),
        Played(12, 99, OTHER_UID, work=f"{run}/work"),
        Played(13, 99, OTHER_UID, work=str(of_spare)),
        Played(14, 10, JOB_UID, work=None),
        Played(15, 10, OTHER_UID),
        Played(16, 99, JOB_UID),
        Played(17, 99, JOB_UID, work=f"{run}0/work"),
        Played(18, 10, None),
    )
    monkeypatch.setattr(processes, "read_supervisor", {run: SupervisorProcess(10, 1000.0)}.get)
    found = processes.processes_of(run, uid, of_spare if spare else None)
    assert [each.pid for each in found] == expected
    assert [each.pid for each in processes.processes_below(of_spare)] == [13]
    monkeypatch.setattr(processes, "read_supervisor", lambda _: None)
    assert [each.pid for each in processes.processes_of(run, JOB_UID)] == [12], "no session is known"


def test_a_process_of_a_user_is_watched_by_the_living_supervisor_of_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PlayedHost(
        monkeypatch,
        Played(10, 10, 0),
        Played(11, 10, JOB_UID),
        Played(20, 20, 0, status=psutil.STATUS_ZOMBIE),
        Played(21, 20, JOB_UID),
        Played(31, 30, JOB_UID),
        Played(40, 40, JOB_UID),
        Played(41, 40, JOB_UID),
        Played(51, 30, OTHER_UID),
    )
    assert [each.pid for each in processes.strays_of(JOB_UID)] == [21, 31, 40, 41]


@pytest.mark.parametrize(
    ("pid", "session", "status", "expected"),
    [
        (11, 10, psutil.STATUS_SLEEPING, ProcessState.ALIVE),
        (11, 10, psutil.STATUS_STOPPED, ProcessState.SUSPENDED),
        (11, 10, psutil.STATUS_ZOMBIE, ProcessState.DEAD),
        (11, 11, psutil.STATUS_RUNNING, ProcessState.DEAD),
        (12, 10, psutil.STATUS_RUNNING, ProcessState.DEAD),
    ],
)
def test_a_driver_lives_while_its_process_is_in_the_session_of_its_run(
    monkeypatch: pytest.MonkeyPatch, pid: int, session: int, status: str, expected: ProcessState
) -> None:
    PlayedHost(monkeypatch, Played(11, 10, JOB_UID, status=status), Played(10, 10, 0))
    assert processes.driver_state(pid, session) is expected


@pytest.mark.parametrize(
    ("pid", "started_at_s", "status", "is_alive"),
    [
        (10, 1000.9, psutil.STATUS_SLEEPING, True),
        (10, 999.1, psutil.STATUS_STOPPED, True),
        (10, 1001.5, psutil.STATUS_SLEEPING, False),
        (10, 998.5, psutil.STATUS_SLEEPING, False),
        (10, 1000.0, psutil.STATUS_ZOMBIE, False),
        (11, 1000.0, psutil.STATUS_SLEEPING, False),
    ],
)
def test_a_supervisor_lives_while_its_id_belongs_to_the_process_that_registered(
    monkeypatch: pytest.MonkeyPatch, pid: int, started_at_s: float, status: str, is_alive: bool
) -> None:
    PlayedHost(monkeypatch, Played(10, 10, 0, status=status))
    assert SupervisorProcess(pid, started_at_s).is_alive() is is_alive


def test_processes_are_killed_and_waited_for_though_some_have_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []

    class Killed(Played):
        def kill(self) -> None:
            steps.append(self.pid)
            if self.pid == 11:
                raise psutil.NoSuchProcess(self.pid)

    killed: Any = [Killed(11, 10, JOB_UID), Killed(12, 10, JOB_UID)]
    monkeypatch.setattr(processes.psutil, "wait_procs", lambda waited, timeout: steps.append((waited, timeout)))
    processes.kill_all(killed)
    assert steps == [11, 12, (killed, 5.0)]


@pytest.mark.parametrize("kind", ["run", "spare"])
def test_a_supervisor_is_started_inside_its_enclosure_in_a_session_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(processes.subprocess, "Popen", lambda command, **given: started.append((command, given)))
    start = processes.start_supervised if kind == "run" else processes.start_spare
    start(tmp_path, ["driver", "-v"], {"A": "b"}, ["enclosed", "--"])
    [(command, given)] = started
    program = "supervisor.py" if kind == "run" else "spare_supervisor.py"
    assert command[:4] == ["enclosed", "--", processes.sys.executable, "-I"]
    assert command[4].rpartition("/")[2] == program
    assert command[5:] == [str(tmp_path), "driver", "-v"]
    assert given == {
        "stdin": subprocess.DEVNULL if kind == "run" else subprocess.PIPE,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": tmp_path,
        "env": {"A": "b"},
        "start_new_session": True,
    }
