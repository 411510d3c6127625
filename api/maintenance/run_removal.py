"""Removes the local files of deleted attempts and jobs.

Their rows are no longer in the database.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, events, jobs
from keyscale.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session, sessionmaker

    from ..launching.launcher import Launcher

logger = logging.getLogger(__name__)

PASS_S = 600.0


@dataclass(frozen=True, slots=True)
class RemovedRuns:
    """The result of a pass.

    Attributes:
        jobs: How many jobs' local files were deleted.
        attempts: How many runs of jobs that still exist.
        size_bytes: The size of all of them.
    """

    jobs: int
    attempts: int
    size_bytes: int


class RunRemoval:
    """A thread that deletes the local files of deleted attempts and jobs.

    It may be killed at any time.

    The retention of history deletes attempts, and users delete jobs, perhaps through another replica. Each replica
    cleans up its own host. An event, RUNS_REMOVED, reports after each pass how much was deleted.

    Args:
        sessions: The database.
        launcher: Has the directories of this host's runs.
    """

    def __init__(self, sessions: sessionmaker[Session], launcher: Launcher) -> None:
        self._sessions = sessions
        self._launcher = launcher
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="run-removal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after the present directory."""
        self._closing.set()
        self._thread.join()

    def run(self) -> RemovedRuns:
        """Makes one pass.

        A run that still has its supervisor is left alone until it has ended.
        """
        here = self._launcher.runs()  # before the rows: a row is there before its run is
        with self._sessions() as session:
            known = jobs.known(session, here)
            kept = attempts.numbers_of(session, known)
        removed_jobs, removed_attempts, size_bytes = 0, 0, 0
        launcher = self._launcher
        self._end_lost({job: sorted(set(numbers) - kept.get(job, set())) for job, numbers in here.items()})
        for job_id, numbers in here.items():
            idle = [number for number in numbers if not _is_supervised(launcher, job_id, number)]
            if self._closing.is_set():
                break
            if job_id in known:
                for number in sorted(set(idle) - kept.get(job_id, set())):
                    freed_bytes = _freed_bytes(job_id, partial(launcher.remove_run, job_id, number))
                    removed_attempts += freed_bytes is not None
                    size_bytes += freed_bytes or 0
            elif len(idle) == len(numbers):
                freed_bytes = _freed_bytes(job_id, partial(launcher.forget, job_id))
                removed_jobs += freed_bytes is not None
                size_bytes += freed_bytes or 0
        removed = RemovedRuns(removed_jobs, removed_attempts, size_bytes)
        self._report(removed)
        return removed

    def _end_lost(self, unknown: dict[str, list[int]]) -> None:
        """Kills the runs that this database has lost.

        The database is a backup that is older than the runs. The driver of such a run would commit and publish
        unseen. A run of another database goes on.
        """
        for job_id, numbers in unknown.items():
            for number in numbers:
                if not _is_supervised(self._launcher, job_id, number):
                    continue
                if not self._launcher.is_of_this_database(job_id, number):
                    logger.warning("run %d of job %s goes on: another database has started it", number, job_id)
                    continue
                self._launcher.kill(job_id, number)
                with self._sessions.begin() as session:
                    events.record(
                        session,
                        job_id=job_id if jobs.known(session, {job_id}) else None,
                        at_ms=now_ms(),
                        kind="LOST_RUN_KILLED",
                        message=f"killed run {number} of job {job_id}, which the database does not know",
                        job=job_id,
                        attempt=number,
                        host=self._launcher.host,
                    )

    def _report(self, removed: RemovedRuns) -> None:
        if not removed.jobs and not removed.attempts:
            return
        with self._sessions.begin() as session:
            events.record(
                session,
                job_id=None,
                at_ms=now_ms(),
                kind="RUNS_REMOVED",
                message=(
                    f"deleted the local files of {removed.jobs} deleted jobs and {removed.attempts} removed attempts"
                    f" on {self._launcher.host}, {bytes_text(removed.size_bytes)}"
                ),
                jobs=removed.jobs,
                attempts=removed.attempts,
                size_bytes=removed.size_bytes,
                host=self._launcher.host,
            )

    def _run(self) -> None:
        while not self._closing.wait(PASS_S):
            try:
                self.run()
            except Exception:  # the thread survives every error, as jobs decide the content of these directories
                logger.warning("old runs cannot be deleted; trying again", exc_info=True)


def _is_supervised(launcher: Launcher, job_id: str, number: int) -> bool:
    """Returns whether a run's supervisor lives.

    A supervisor that cannot be checked counts as alive.
    """
    try:
        return launcher.has_supervisor(job_id, number)
    except Exception:
        logger.warning("run %d of job %s cannot be looked at", number, job_id, exc_info=True)
        return True


def _freed_bytes(job_id: str, remove: Callable[[], int]) -> int | None:
    """Removes local files of a job; returns their size.

    Returns None after a failure, which must not keep other jobs' files.
    """
    try:
        return remove()
    except Exception:
        logger.warning("local files of job %s cannot be deleted; trying again", job_id, exc_info=True)
        return None
