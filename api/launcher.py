"""Starts drivers that outlive the control plane, looks after them, and kills what is left of them."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from api.driver_command import driver_command, driver_environment
from api.lifecycle.facts import ProcessState
from api.security import new_token, token_sha256

if TYPE_CHECKING:
    from api.settings import Settings
    from db.models import Attempt, Job

_log = logging.getLogger(__name__)

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_CLAIM_WITHIN_S = 30.0
_DEATH_WITHIN_S = 5.0
_START_TIME_TOLERANCE_S = 1.0
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of an attempt's processes."""

    state: ProcessState
    exit_code: int | None = None


class Launcher:
    """Starts drivers on this host. A directory a run holds what the supervisor notes; see `api.supervisor`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.host = platform.node()
        self._launched: dict[tuple[str, int], tuple[float, subprocess.Popen[bytes] | None]] = {}

    def prepare(self, job_id: str, attempt: int) -> str:
        """Makes the run's directory and the attempt's token; a second call finds the same token.

        Returns:
            The token's hash. The token itself is only in a file that the launcher alone reads, until the run is cleaned up.
        """
        directory = self._run_directory(job_id, attempt)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = directory / "token"
        if not file.exists():
            fresh = directory / "token.new"
            fresh.unlink(missing_ok=True)
            fresh.touch(mode=0o600)
            fresh.write_text(new_token())
            fresh.replace(file)
        return token_sha256(file.read_text())

    def launch(self, job: Job, attempt: Attempt) -> None:
        """Starts an attempt's driver. If that has been done before, nothing happens: the first supervisor has the claim."""
        directory = self._run_directory(job.id, attempt.number)
        work = directory / "work"
        environment = driver_environment(self._settings, (directory / "token").read_text(), work, os.environ)
        command = driver_command(self._settings, job, attempt, work)
        process: subprocess.Popen[bytes] | None = None
        try:
            process = subprocess.Popen(  # noqa: S603 - the command is ours; a job's settings are on an allow-list
                [sys.executable, "-I", str(_SUPERVISOR), str(directory), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            _log.exception("job %s: the supervisor of attempt %d cannot be started", job.id, attempt.number)
        self._launched[job.id, attempt.number] = (time.monotonic(), process)

    def inspect(self, attempt: Attempt) -> Seen:
        """Looks at an attempt's processes."""
        if attempt.launched_on is None:
            return Seen(ProcessState.UNLAUNCHED)
        if attempt.launched_on != self.host:
            return Seen(ProcessState.UNKNOWN)
        directory = self._run_directory(attempt.job_id, attempt.number)
        supervisor = _read_claim(directory)
        if supervisor is None:
            return self._unclaimed(attempt)
        self._poll(attempt)
        exit_code = _read_exit_code(directory)
        if exit_code is not None or not supervisor.is_alive():
            return Seen(ProcessState.DEAD, exit_code)
        if attempt.pid is not None and attempt.host == self.host:
            return Seen(_driver_state(attempt.pid, supervisor.pid))
        return Seen(ProcessState.ALIVE)

    def kill(self, job_id: str, attempt: int) -> None:
        """Kills every process of an attempt, and waits until they are gone or the kernel needs longer."""
        directory = self._run_directory(job_id, attempt)
        processes = _processes_of(directory)
        for process in processes:
            try:
                process.kill()
            except _GONE:
                continue
        psutil.wait_procs(processes, timeout=_DEATH_WITHIN_S)

    def clean_up(self, job_id: str, attempt: int) -> None:
        """Kills stragglers and deletes what only the run needed; the log stays."""
        self.kill(job_id, attempt)
        directory = self._run_directory(job_id, attempt)
        (directory / "token").unlink(missing_ok=True)
        shutil.rmtree(directory / "work", ignore_errors=True)
        self._launched.pop((job_id, attempt), None)

    def forget(self, job_id: str) -> None:
        """Deletes the logs of a deleted job."""
        shutil.rmtree(self._settings.runs_directory / job_id, ignore_errors=True)

    def log_tail(self, job_id: str, attempt: int, bytes_max: int) -> tuple[str, int]:
        """Returns the end of a driver's log and the log's size in bytes."""
        try:
            with (self._run_directory(job_id, attempt) / "driver.log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - bytes_max))
                return file.read(bytes_max).decode(errors="replace"), size
        except FileNotFoundError:
            return "", 0

    def _run_directory(self, job_id: str, attempt: int) -> Path:
        return self._settings.runs_directory / job_id / str(attempt)

    def _unclaimed(self, attempt: Attempt) -> Seen:
        """Nothing was noted: it is just starting, was never started, or somebody has deleted the run's directory."""
        at_s, process = self._launched.get((attempt.job_id, attempt.number), (float("-inf"), None))
        if process is not None and process.poll() is None and time.monotonic() - at_s < _CLAIM_WITHIN_S:
            return Seen(ProcessState.STARTING)
        if attempt.attached_at_ms is not None:
            return Seen(ProcessState.UNKNOWN)
        return Seen(ProcessState.DEAD if at_s > 0 else ProcessState.UNLAUNCHED)

    def _poll(self, attempt: Attempt) -> None:
        """Collects a child that has ended, so that no zombie is left."""
        _, process = self._launched.get((attempt.job_id, attempt.number), (0.0, None))
        if process is not None:
            process.poll()


@dataclass(frozen=True, slots=True)
class _Claim:
    """The supervisor that has claimed a run. Its process id is also that of the session of all of the run's processes."""

    pid: int
    started_at_s: float

    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at_s) < _START_TIME_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except _GONE:
            return False


def _read_claim(directory: Path) -> _Claim | None:
    try:
        noted = json.loads((directory / "process.json").read_text())
    except FileNotFoundError:
        return None
    return _Claim(int(noted["pid"]), float(noted["started_at_s"]))


def _read_exit_code(directory: Path) -> int | None:
    try:
        return int((directory / "exit_code").read_text())
    except FileNotFoundError:
        return None


def _driver_state(pid: int, session: int) -> ProcessState:
    """Looks at the process that asked for work; if it is gone, the attempt is over even while others linger."""
    try:
        if os.getsid(pid) != session:
            return ProcessState.DEAD  # the number belongs to another process by now
        status = psutil.Process(pid).status()
    except (*_GONE, ProcessLookupError):
        return ProcessState.DEAD
    if status == psutil.STATUS_ZOMBIE:
        return ProcessState.DEAD
    return ProcessState.SUSPENDED if status == psutil.STATUS_STOPPED else ProcessState.ALIVE


def _processes_of(directory: Path) -> list[psutil.Process]:
    """Returns all processes of a run: those of the supervisor's session that have the run's directory in their environment.

    Spark's Python workers leave the process group, but not the session. The environment tells them from processes of a
    later session that has got the same number.
    """
    claim = _read_claim(directory)
    if claim is None:
        return []
    marker = str(directory / "work")
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or os.getsid(process.pid) != claim.pid:
                continue
            if process.environ().get("KEYSCALE_WORK_DIR") == marker:
                found.append(process)
        except (*_GONE, psutil.AccessDenied, ProcessLookupError):
            continue
    return found
