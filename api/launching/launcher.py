"""Starts drivers that outlive the control plane.

Also watches them, and kills their processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from keyscale.db.embedded import let_enter
from keyscale.directory_tree import remove_tree
from keyscale.jobs.protocol.storable_text import is_storable
from keyscale.log_lines import FIELDS_VARIABLE
from keyscale.state.doors.paths import CONTROL_PLANES

from ..access.tokens import attempt_token, token_sha256
from ..errors import JobUserError
from ..job_spec import spec_of
from ..libraries.library_cache import LibraryCache, PlacedLibraries
from .driver_command import driver_command, driver_environment, temporary_directory
from .driver_log import open_log
from .driver_start import DriverStart
from .enclosures import NO_ENCLOSURES, Enclosures
from .isolation import Isolation, JobUser, give_to, local_directory, make_directory, owner_of
from .job_records import keep_record
from .processes import (
    ProcessState,
    driver_state,
    kill_all,
    processes_of,
    read_exit_code,
    read_supervisor,
    start_supervised,
    strays_of,
)
from .run_files import read_text
from .shared_snapshots import let_delete, member_of_readers
from .spare_drivers import SpareDrivers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from keyscale.db.models import Attempt, Job, Revision
    from keyscale.state.doors.catalogue import JobRecord
    from keyscale.state.doors.objects import Grant

    from ..libraries.job_libraries import JobLibraries
    from ..settings import Settings
    from .driver_log import DriverLog

logger = logging.getLogger(__name__)

_SUPERVISED_WITHIN_S = 30.0
PLANS = "plans"
"""The directory beside the jobs' directories in which programs are loaded for plans."""
_ATTEMPT_NUMBER = re.compile("[1-9][0-9]{0,11}")
_LIBRARIES = "libraries"  # a run's file with the SHA-256 of each of its libraries, while it may run


@dataclass(frozen=True, slots=True)
class Seen:
    """An attempt's processes at one moment.

    Attributes:
        state: Their state.
        exit_code: The exit code of its driver.
        pids: The processes whose end must be noticed; None if unknown.
    """

    state: ProcessState
    exit_code: int | None = None
    pids: frozenset[int] | None = None


class Launcher:
    """Starts drivers on this host.

    Each run has a directory; see `keyscale.api.launching.supervisor` for its files.

    Args:
        settings: The control plane's settings.
        isolation: The users of jobs; None: jobs run as the control plane's user.
        enclosures: What holds the quotas of jobs.
        read_artifact: Yields the bytes of the artifact with a SHA-256; None: no jobs are launched.
        read_key: Returns the key of the replicas of the database; None: there are no replicas.
        note_start: Counts a start of a driver, by its way: `spare` or `new`.
    """

    def __init__(
        self,
        settings: Settings,
        isolation: Isolation | None = None,
        read_artifact: Callable[[str], Iterable[bytes]] | None = None,
        read_key: Callable[[], str] | None = None,
        enclosures: Enclosures = NO_ENCLOSURES,
        *,
        note_start: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._read_artifact = read_artifact or (lambda _: ())
        self.libraries = LibraryCache(settings.home / "libraries", self._read_artifact)
        self._read_key = read_key or (lambda: "")
        self.enclosures = enclosures
        self.isolation = isolation or Isolation(why_not="it was not asked for")
        self.spares = SpareDrivers(settings.home / "spares", enclosures)
        self._note_start = note_start
        self.host = platform.node()
        # Replicas on the same host have separate homes, and see only the runs under their home.
        self.place = f"{self.host}:{settings.home}"
        self._launched: dict[tuple[str, int], tuple[float, subprocess.Popen[bytes] | None]] = {}

    def prepare(self, job_id: str, attempt: int) -> str:
        """Makes the run's directory and the attempt's token.

        A second call finds the same token.

        Returns:
            The token's hash. The token itself is only in a file that the launcher alone reads, until the run is cleaned
            up.
        """
        directory = self._run_directory(job_id, attempt)
        for part in (self._settings.runs_directory, directory.parent, directory):
            make_directory(part, enter=self.isolation.count > 0)
        token = read_text(directory / "token")
        if not token:
            fresh, token = directory / "token.new", attempt_token(self._read_key(), f"{job_id}:{attempt}")
            fresh.unlink(missing_ok=True)
            fresh.touch(mode=0o600)
            fresh.write_text(token)
            fresh.replace(directory / "token")
        return token_sha256(token)

    def launch(  # noqa: PLR0917 - the parts of a run
        self,
        job: Job,
        revision: Revision,
        attempt: Attempt,
        brought: JobLibraries,
        granted: Grant,
        record: JobRecord,
        log_fields: Mapping[str, object],
    ) -> None:
        """Starts an attempt's driver, after the job's record is in the store.

        A second call has no effect: only the first supervisor can register.

        Args:
            job: The job.
            revision: The revision that the attempt runs.
            attempt: Its attempt.
            brought: The libraries of the attempt's revision.
            granted: The job's rights to the objects of the store.
            record: The job's definition, for a lost database.
            log_fields: The fields of the driver's log lines.

        Raises:
            StoreUnavailableError: The record cannot be stored.
            JobUserError: The job cannot have its own user, or its user may not read the snapshot to restore.
            OSError: The driver's cgroup cannot be made.
            LibraryUnavailableError: A library cannot be copied to this host.
            LibraryInvalidError: A package of jars is gone.
        """
        user = self.isolation.user(self.isolation.holder(job))
        self._make_directories_of_job(job, self._run_directory(job.id, attempt.number) / "work", user)
        self.keep_record(job, record)
        start = self.start_of(job, revision, attempt, brought, granted)
        run = _run_name(job.id, attempt.number)
        quota = self.enclosures.variables(run)
        start = replace(start, variables={**start.variables, FIELDS_VARIABLE: json.dumps(log_fields), **quota})
        process = self.spares.take(start)
        self._note_start("new" if process is None else "spare")
        try:
            process = process or start_supervised(
                start.directory, start.command, start.variables, self.enclosures.command(run)
            )
        except OSError:
            logger.exception("job %s: the supervisor of attempt %d cannot be started", job.id, attempt.number)
        self._launched[job.id, attempt.number] = (time.monotonic(), process)

    def start_of(
        self, job: Job, revision: Revision, attempt: Attempt, brought: JobLibraries, granted: Grant
    ) -> DriverStart:
        """Returns what an attempt's driver is started with.

        Arguments and errors as for `launch`, but for the store's.
        """
        directory = self._run_directory(job.id, attempt.run_number)
        work = directory / "work"
        user = self.isolation.user(self.isolation.holder(job))
        if user is not None and (objects := local_directory(job.store_url)) is not None:
            user = _reader_of_others(objects, granted, user)
        libraries = self.place_libraries(brought, directory)
        variables = driver_environment(
            self._settings,
            read_text(directory / "token") or "",
            work,
            os.environ,
            self._settings.job_secrets.environment_of(spec_of(revision).secrets),
            store_url=job.store_url,
            user=user,
            libraries=libraries,
        )
        command = driver_command(self._settings, job, revision, attempt, work, libraries=libraries)
        of_attempt = {"KEYSCALE_ATTEMPT": f"{job.id}:{attempt.number}", "KEYSCALE_JOB_STORE_URL": job.store_url}
        return DriverStart(directory, command, {**variables, **of_attempt})

    def keep_record(self, job: Job, record: JobRecord) -> None:
        """Stores a job's definition beside its log.

        Raises:
            StoreUnavailableError: The record cannot be stored.
            JobUserError: Another object has the name of the directory of records.
        """
        keep_record(job.store_url, record, self._read_artifact)

    def place_libraries(self, brought: JobLibraries, directory: Path) -> PlacedLibraries:
        """Copies libraries to this host for a run.

        Notes that the run uses them, and deletes unused libraries.
        """
        placed = self.libraries.place(brought.files)
        packages = self._settings.jar_rules.jars_of(brought.packages)
        if directory.exists():
            (directory / _LIBRARIES).write_text("\n".join(placed.sha256s))
        notes = self._settings.runs_directory.glob(f"*/*/{_LIBRARIES}")
        self.libraries.sweep({sha256 for note in notes for sha256 in (read_text(note) or "").split()})
        return replace(placed, jars=tuple(dict.fromkeys((*placed.jars, *packages))))

    def inspect(self, attempt: Attempt) -> Seen:
        """Looks at an attempt's processes."""
        if attempt.launched_on is None:
            return Seen(ProcessState.UNLAUNCHED)
        if attempt.launched_on != self.place:
            return Seen(ProcessState.UNKNOWN, pids=frozenset())
        directory = self._run_directory(attempt.job_id, attempt.run_number)
        supervisor = read_supervisor(directory)
        if supervisor is None:
            return self._without_supervisor(attempt)
        self._poll(attempt)
        exit_code = read_exit_code(directory)
        if exit_code is not None or not supervisor.is_alive():
            return Seen(ProcessState.DEAD, exit_code)
        if attempt.pid is not None and attempt.host == self.host:
            state = driver_state(attempt.pid, supervisor.pid)
            return Seen(state, pids=frozenset({supervisor.pid, attempt.pid}))
        return Seen(ProcessState.ALIVE)

    def is_of_this_host(self, attempt: Attempt) -> bool:
        """Returns whether an attempt was launched on this host, from any home."""
        return (attempt.launched_on or "").partition(":")[0] == self.host

    def living(self) -> frozenset[int]:
        """Returns the ids of all processes of this host.

        Supervisors that have ended are collected first, so that they leave no zombies.
        """
        for _, process in tuple(self._launched.values()):
            if process is not None:
                process.poll()
        return frozenset(psutil.pids())

    def kill(self, job_id: str, attempt: int) -> None:
        """Kills every process of an attempt.

        Waits until they are gone or the kernel takes too long.
        """
        directory = self._run_directory(job_id, attempt)
        work = self._work_of(directory)
        kill_all(processes_of(directory, owner_of(work), work))

    def clean_up(self, job_id: str, attempt: int) -> None:
        """Kills the remaining processes and deletes a run's files except the log.

        It deletes as much as it can.
        """
        self._end(job_id, attempt)
        self.enclosures.remove(_run_name(job_id, attempt))
        directory = self._run_directory(job_id, attempt)
        self.spares.remove(_spare_of(directory))
        for name in ("token", _LIBRARIES):
            try:
                (directory / name).unlink(missing_ok=True)
            except OSError as error:  # the attempt has ended, so that its token is refused
                logger.warning("%s stays until its run is removed: %s", directory / name, error)
        work = directory / "work"
        for place in (work, temporary_directory(work)):
            try:
                remove_tree(place)
            except OSError as error:
                logger.warning("%s stays until its run is removed: %s", place, error)

    def forget(self, job_id: str) -> int:
        """Deletes a deleted job's logs and local files on this host.

        Returns:
            The size of the files in its directory.

        Raises:
            OSError: Some files cannot be deleted. All other files were deleted.
        """
        directory = self._settings.runs_directory / job_id
        elsewhere = _on_other_disks(directory / "state", job_id)
        if (uid := owner_of(directory / "state")) is not None:
            self.spares.end_of_user(uid)
            kill_all(strays_of(uid))
            if elsewhere:
                # The job has made the links: the job's own user deletes what it can. There may be more links than fit
                # into a command.
                command = ["xargs", "-0", "rm", "-rf", "--"]
                subprocess.run(  # noqa: S603
                    command,
                    check=False,
                    input=b"\0".join(map(os.fsencode, elsewhere)),
                    user=uid,
                    group=uid,
                    extra_groups=[],
                    stderr=subprocess.DEVNULL,
                )
        else:
            for place in elsewhere:
                with contextlib.suppress(OSError):
                    remove_tree(place)
        if (objects := local_directory(self._settings.store_url)) is not None and (objects / job_id).is_dir():
            # Its savepoints stay, also for jobs that restore from them, and so does its group, which no other job gets.
            group = (objects / job_id).lstat().st_gid
            make_directory(objects / job_id, owner=JobUser(os.geteuid(), group), is_shared=True)
        return remove_tree(directory)

    def runs(self) -> dict[str, list[int]]:
        """Returns the attempts with run directories on this host, by job.

        Directories with other names are skipped.
        """
        return {
            directory.name: _attempts_in(directory)
            for directory in self._settings.runs_directory.glob("*/")
            if directory.name != PLANS and is_storable(directory.name)
        }

    def sweep_spares(self) -> None:
        """Removes the spares of earlier control planes that no run has taken."""
        if self.spares.has_directories:
            runs = ((job_id, number) for job_id, numbers in self.runs().items() for number in numbers)
            self.spares.sweep({_spare_of(self._run_directory(*run)) for run in runs})

    def has_supervisor(self, job_id: str, attempt: int) -> bool:
        """Returns whether a run's supervisor lives."""
        supervisor = read_supervisor(self._run_directory(job_id, attempt))
        return supervisor is not None and supervisor.is_alive()

    def is_of_this_database(self, job_id: str, attempt: int) -> bool:
        """Returns whether a replica of this database has made a run.

        A run that is cleaned up has no token to tell.
        """
        token = read_text(self._run_directory(job_id, attempt) / "token") or ""
        salt = token.partition(".")[0]
        return bool(token) and token == attempt_token(self._read_key(), f"{job_id}:{attempt}", salt)

    def remove_run(self, job_id: str, attempt: int) -> int:
        """Deletes what `clean_up` has left of a run: its log.

        Returns:
            The size of the run's files in bytes.

        Raises:
            OSError: Some files cannot be deleted. All other files were deleted.
        """
        self._end(job_id, attempt)
        return remove_tree(self._run_directory(job_id, attempt))

    def _end(self, job_id: str, attempt: int) -> None:
        self.kill(job_id, attempt)
        if (uid := owner_of(self._work_of(self._run_directory(job_id, attempt)))) is not None:
            kill_all(strays_of(uid))
        self._launched.pop((job_id, attempt), None)

    def _make_directories_of_job(self, job: Job, work: Path, user: JobUser | None) -> None:
        """Makes the directories that a job's processes write.

        Other users cannot read them.
        """
        make_directory(temporary_directory(work), owner=user)
        if not self._settings.spark_master.startswith("local"):
            return  # executors run as another user, perhaps on another host
        directories = [work, work.parents[1] / "state"]
        if (objects := local_directory(job.store_url)) is not None:
            if not objects.exists():
                objects.mkdir(parents=True, mode=0o711)
            if user is not None:
                let_enter(objects)
            directories.append(objects / job.id)
        for directory in directories:
            if user is not None:
                give_to(directory, user)
            is_shared = directory.parent == objects  # other jobs may restore from its snapshots
            make_directory(directory, owner=user or JobUser(os.geteuid(), os.getegid()), is_shared=is_shared)

    def secrets_of(self, job_id: str, attempt: int, revisions: Iterable[Revision]) -> dict[str, str]:
        """Returns the variables with the secrets that an attempt's texts may have.

        They are the store's credentials, the secrets of some revisions and, while the attempt runs here, its token.

        All revisions of a job that run at the same time count, because their processes run as the same user.
        """
        secrets = dict(self._settings.store_environment)
        for revision in revisions:
            secrets |= self._settings.job_secrets.variables_of(spec_of(revision).secrets)
        if token := read_text(self._run_directory(job_id, attempt) / "token"):
            secrets["KEYSCALE_ATTEMPT_TOKEN"] = token
        return secrets

    def log(self, job_id: str, attempt: int) -> AbstractContextManager[DriverLog]:
        """Opens a driver's log for reading."""
        return open_log(self._run_directory(job_id, attempt))

    def _run_directory(self, job_id: str, attempt: int) -> Path:
        return self._settings.runs_directory / job_id / str(attempt)

    def _work_of(self, directory: Path) -> Path:
        """Returns the work directory of a run's processes."""
        spare = _spare_of(directory)
        return self.spares.work_of(spare) if spare else directory / "work"

    def _without_supervisor(self, attempt: Attempt) -> Seen:
        """Returns the state of a run without a supervisor.

        The run is just starting, was never started, or its directory was deleted.
        """
        at_s, process = self._launched.get((attempt.job_id, attempt.run_number), (float("-inf"), None))
        if process is not None and process.poll() is None and time.monotonic() - at_s < _SUPERVISED_WITHIN_S:
            return Seen(ProcessState.STARTING)
        if attempt.attached_at_ms is not None:
            return Seen(ProcessState.UNKNOWN)
        return Seen(ProcessState.DEAD if at_s > 0 else ProcessState.UNLAUNCHED)

    def _poll(self, attempt: Attempt) -> None:
        """Collects a child that has ended, so that it leaves no zombie."""
        _, process = self._launched.get((attempt.job_id, attempt.run_number), (0.0, None))
        if process is not None:
            process.poll()


def _spare_of(directory: Path) -> str:
    """Returns the name of the spare that a run has taken.

    Returns an empty text without one.
    """
    supervisor = read_supervisor(directory)
    return "" if supervisor is None else supervisor.spare


def _run_name(job_id: str, attempt: int) -> str:
    return f"{job_id}-{attempt}"


def _on_other_disks(state: Path, job_id: str) -> list[Path]:
    """Returns the directories of a job's local state on other disks.

    The job's program names the disks, so only its links tell the directories. A job can make links that lead anywhere:
    a link counts only if it leads to a directory that is named like its own place, by job, attempt, operator and
    subtask, and if no other link is on the way.
    """
    found, root = [], os.path.realpath(state)
    for link in (state / job_id).glob("attempt-*/*/subtask-*"):
        own = link.relative_to(state)
        if link.is_symlink() and os.path.realpath(link.parent) == os.path.join(root, own.parent):  # noqa: PTH118 - text
            place = os.path.realpath(link)
            if place.endswith(f"/{own}") and link.readlink().is_absolute():
                found.append(link.readlink())
    return found


def _attempts_in(directory: Path) -> list[int]:
    try:
        return [int(run.name) for run in directory.iterdir() if _ATTEMPT_NUMBER.fullmatch(run.name)]
    except OSError as error:
        logger.warning("%s cannot be listed: %s", directory, error)
        return []


def _reader_of_others(objects: Path, granted: Grant, user: JobUser) -> JobUser:
    """Returns a job's user that may read other jobs' snapshots.

    These are the snapshots that the job restores from.
    """
    for prefix in granted.readable:
        if prefix != CONTROL_PLANES:
            user = member_of_readers(objects, prefix.strip("/"), user)
    _, *claimed = granted.own
    for prefix in claimed:
        try:
            let_delete(objects, prefix.strip("/").split("/"), user)
        except JobUserError:  # the other job still owns the directories of snapshots that this job has claimed
            logger.exception("a savepoint that the user %d has claimed cannot be given to it", user.uid)
    return user
