"""Removes deleted jobs' objects from the store, in the background."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.models import DeletedJob
from keyscale.db.repositories import checkpoints, deleted_jobs, events
from keyscale.errors import KeyscaleError
from keyscale.identifiers import JobId
from keyscale.state.doors.catalogue import delete_job_objects
from keyscale.state.doors.paths import location_of, split_location
from keyscale.units import bytes_text, counted

from ..store_check import open_to_read
from .leader_thread import LeaderThread

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.state.doors.catalogue import DeletedObjects

    from ..lifecycle.leadership import Leadership
    from ..lifecycle.reconciler import ReconcilerPulse

logger = logging.getLogger(__name__)

POLL_S = 2.0
SETTLED_MS = 60 * 60 * 1000
"""A process that still wrote for a job when it was deleted has ended after this long."""
RETRY_MS = 60_000
ROWS_AT_ONCE = 500
"""A checkpoint has a row per operator and subtask; one statement must not exceed its time limit."""


class ObjectRemoval(LeaderThread):
    """A thread that deletes the objects of deleted jobs.

    It may be killed between any two lines.

    A first pass follows a deletion immediately. After an hour a last pass deletes the later writes of processes that
    could not be reached. Events report how much was deleted.

    Args:
        sessions: The database.
        pulse: Shows whether this control plane leads, and in which epoch; only then it works.
    """

    def __init__(self, sessions: sessionmaker[Session], pulse: ReconcilerPulse) -> None:
        super().__init__("object-removal", POLL_S, sessions=sessions, pulse=pulse)

    def work(self, leadership: Leadership) -> bool:
        """Runs the pass that is longest overdue; returns whether there was one.

        A pass over the store that another replica begins meanwhile is harmless.

        Raises:
            LeadershipLostError: Another replica leads and continues the pass.
        """
        with leadership.transaction() as session:
            job = deleted_jobs.first_due(session, now_ms())
        if job is None:
            return False
        if not self._remove_rows(leadership, job):
            return True
        is_last = now_ms() >= job.deleted_at_ms + SETTLED_MS
        try:
            done = delete_job_objects(
                open_to_read(job.store_url),
                JobId(job.job_id),
                is_last=is_last,
                writes_before_ms=now_ms() - SETTLED_MS if is_last else None,
                claimed=_paths(job.claimed),
                discarded=_paths(job.discarded),
            )
        except Exception as error:  # noqa: BLE001 - a failing job must not keep the objects of other jobs
            code = error.code if isinstance(error, KeyscaleError) else type(error).__name__
            logger.warning("the objects of deleted job %s cannot be deleted: %s: %s", job.job_id, code, error)
            _failed(leadership, job, code)
        else:
            _passed(leadership, job, done, is_last=is_last)
        return True

    def _remove_rows(self, leadership: Leadership, job: DeletedJob) -> bool:
        """Deletes the job's checkpoints, a few at a time.

        Returns whether its objects must also be deleted.
        """
        while not self.is_closing:
            with leadership.transaction() as session:
                if checkpoints.delete_some(session, job.job_id, ROWS_AT_ONCE):
                    continue
                if job.keep_objects and (row := session.get(DeletedJob, job.job_id)) is not None:
                    session.delete(row)
                return not job.keep_objects
        return False


def _paths(locations: list[str]) -> list[str]:
    return [split_location(location)[1] for location in locations]


def _failed(leadership: Leadership, job: DeletedJob, code: str) -> None:
    with leadership.transaction() as session:
        row = session.get(DeletedJob, job.job_id)
        if row is None:
            return
        if row.failure_code != code:
            events.record(
                session,
                job_id=job.job_id,
                at_ms=now_ms(),
                kind="JOB_OBJECTS_KEPT",
                message=f"the objects of {job.name} cannot be deleted; this is tried again",
                failure_code=code,
                store_url=job.store_url,
            )
        row.failure_code, row.due_at_ms = code, now_ms() + RETRY_MS


def _passed(leadership: Leadership, job: DeletedJob, done: DeletedObjects, *, is_last: bool) -> None:
    with leadership.transaction() as session:
        row = session.get(DeletedJob, job.job_id)
        if row is None:
            return
        if done.objects or done.unfinished_writes:
            stay = f"; kept {counted(len(done.savepoints), 'savepoint')}" if done.savepoints else ""
            events.record(
                session,
                job_id=job.job_id,
                at_ms=now_ms(),
                kind="JOB_OBJECTS_DELETED",
                message=f"deleted {counted(done.objects, 'object')} of {job.name}, {bytes_text(done.size_bytes)}{stay}",
                objects=done.objects,
                size_bytes=done.size_bytes,
                unfinished_writes=done.unfinished_writes,
                savepoints=[location_of(job.store_url, path) for path in done.savepoints],
                store_url=job.store_url,
            )
        if is_last:
            session.delete(row)
        else:
            row.failure_code, row.due_at_ms = None, job.deleted_at_ms + SETTLED_MS
