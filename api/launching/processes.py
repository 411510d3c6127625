"""The processes of a run.

They are its supervisor, its driver, and all processes that these started.

A run is one attempt of a job on this host. Its directory holds what its supervisor writes; see
`keyscale.api.launching.supervisor`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import psutil

from .run_files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_SPARE_SUPERVISOR = Path(__file__).with_name("spare_supervisor.py")
_START_TIME_TOLERANCE_S = 1.0
_EXIT_CODE = re.compile(r"[0-9]{1,3}")
_DEATH_WITHIN_S = 5.0
GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)
"""The exceptions that psutil raises for a process that has ended."""


class _Registration(msgspec.Struct):
    """The content of `process.json`."""

    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    started_at_s: float
    spare: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$")] = ""


class ProcessState(StrEnum):
    """The state of an attempt's processes."""

    UNLAUNCHED = "UNLAUNCHED"  # the launcher was not told to start it, or died before recording the start
    STARTING = "STARTING"
    ALIVE = "ALIVE"
    SUSPENDED = "SUSPENDED"  # stopped by a signal
    DEAD = "DEAD"
    UNKNOWN = "UNKNOWN"  # it was started on another host; only its heartbeats show whether it lives


@dataclass(frozen=True, slots=True)
class SupervisorProcess:
    """A run's supervisor.

    Its process id is also the session id of all of the run's processes.

    Attributes:
        pid: Its process id.
        started_at_s: When it started.
        spare: The name of the spare whose driver the run has taken; empty: none.
    """

    pid: int
    started_at_s: float
    spare: str = ""

    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at_s) < _START_TIME_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except GONE:
            return False


def start_supervised(
    directory: Path, command: Sequence[str], environment: Mapping[str, str], inside: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Starts a run's supervisor, which starts the command.

    Both are in a session of their own.

    Args:
        directory: The run's directory.
        command: What the supervisor starts.
        environment: The environment variables of both.
        inside: A command that becomes the command after it, inside of an enclosure.

    Raises:
        OSError: The supervisor cannot be started.
    """
    return _start(_SUPERVISOR, directory, command, environment, inside, stdin=subprocess.DEVNULL)


def start_spare(
    directory: Path, command: Sequence[str], environment: Mapping[str, str], inside: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Starts a spare's supervisor, which starts the command.

    It reads the spare's assignment from its standard input, and ends with it.

    Arguments as for `start_supervised`.

    Raises:
        OSError: The supervisor cannot be started.
    """
    return _start(_SPARE_SUPERVISOR, directory, command, environment, inside, stdin=subprocess.PIPE)


def _start(
    program: Path,
    directory: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    inside: Sequence[str],
    *,
    stdin: int,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - a command of the control plane; a job's settings are on an allow-list
        [*inside, sys.executable, "-I", str(program), str(directory), *command],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        env=environment,
        start_new_session=True,
    )


def read_supervisor(directory: Path) -> SupervisorProcess | None:
    """Returns the supervisor that is registered in a run's directory.

    Returns None without a readable registration.
    """
    try:
        registered = msgspec.json.decode(read_text(directory / "process.json") or "", type=_Registration)
    except msgspec.MsgspecError:
        return None
    return SupervisorProcess(registered.pid, registered.started_at_s, registered.spare)


def read_exit_code(directory: Path) -> int | None:
    """Returns the driver's exit code.

    Returns None while it runs or if its supervisor was killed.
    """
    code = (read_text(directory / "exit_code") or "").strip()
    return int(code) if _EXIT_CODE.fullmatch(code) else None


def driver_state(pid: int, session: int) -> ProcessState:
    """Returns the state of the process that asked for work.

    Once it is gone, the attempt is over even if other processes remain.

    Args:
        pid: The driver's own process id, as it reported it.
        session: The session id of the run's processes.
    """
    try:
        if os.getsid(pid) != session:
            return ProcessState.DEAD  # the number now belongs to another process
        status = psutil.Process(pid).status()
    except (*GONE, ProcessLookupError):
        return ProcessState.DEAD
    if status == psutil.STATUS_ZOMBIE:
        return ProcessState.DEAD
    return ProcessState.SUSPENDED if status == psutil.STATUS_STOPPED else ProcessState.ALIVE


def processes_of(directory: Path, uid: int | None = None, work: Path | None = None) -> list[psutil.Process]:
    """Returns all processes of a run.

    They have its work directory in their environment, or belong to its session.

    Spark's Python workers leave the process group, but not the session. A process of a job's own user may have any
    environment; its user distinguishes it from processes of a later session with the same number.

    Args:
        directory: The run's directory.
        uid: The job's own user; None: the job runs as the control plane's user.
        work: The work directory of the spare that it has taken, if any.
    """
    supervisor = read_supervisor(directory)
    session = None if supervisor is None else supervisor.pid
    markers = {str(directory / "work"), str(work or directory / "work")}
    return [
        process
        for process in _others()
        if _work_directory_of(process) in markers
        or (None not in {uid, session} and _session_of(process) == session and _uid_of(process) == uid)
    ]


def processes_below(work: Path) -> list[psutil.Process]:
    """Returns all processes that have a work directory in their environment."""
    return [process for process in _others() if _work_directory_of(process) == str(work)]


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Kills processes, and waits until they are gone.

    The wait ends if the kernel takes too long.
    """
    for process in processes:
        try:
            process.kill()
        except GONE:
            continue
    psutil.wait_procs(processes, timeout=_DEATH_WITHIN_S)


def strays_of(uid: int) -> list[psutil.Process]:
    """Returns the processes of a job's user that no supervisor watches.

    They have left its session, or the supervisor is gone.

    Other runs of the user are left alone: runs of the same job, of a job with the same user, and of another control
    plane on this host. A supervisor runs as the control plane's user, and no process can move into its session.
    """
    return [process for process in _others() if _uid_of(process) == uid and not _is_watched(process, uid)]


def _is_watched(process: psutil.Process, uid: int) -> bool:
    try:
        leader = psutil.Process(os.getsid(process.pid))
        return leader.uids().real != uid and leader.status() != psutil.STATUS_ZOMBIE
    except (*GONE, ProcessLookupError):
        return False


def _others() -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter() if process.pid != os.getpid())


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _uid_of(process: psutil.Process) -> int | None:
    try:
        return process.uids().real
    except (*GONE, psutil.AccessDenied):
        return None


def _work_directory_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("KEYSCALE_WORK_DIR")
    except (*GONE, psutil.AccessDenied, ProcessLookupError):
        return None
