"""Releases the unused savepoints of changes and policies.

Their objects are then deleted like those of savepoints that users delete. It first lists the savepoints that drivers
could not report, and the savepoints of state changes whose control plane ended.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, checkpoints, events, jobs, operations, savepoint_policies, snapshot_needs
from keyscale.errors import KeyscaleError
from keyscale.state.doors.catalogue import claimant_of
from keyscale.state.doors.paths import split_location
from keyscale.vocabulary import CheckpointStatus, SnapshotOwner

from ..errors import StoreUnavailableError
from ..lifecycle.snapshot_uses import uses_of
from ..lifecycle.transitions import Action, is_allowed
from ..store_check import open_to_read
from .leader_thread import LeaderThread
from .savepoint_policy import outdated

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.db.models import Checkpoint, Event

    from ..lifecycle.leadership import Leadership
    from ..lifecycle.reconciler import ReconcilerPulse
    from ..store_check import PublishedSavepoint, StoreCheck

logger = logging.getLogger(__name__)

POLL_S = 10.0
RETRY_S = 60.0
UNREPORTED_MS = 3_600_000
"""How long after an operation a savepoint may appear, from a driver that lived on unheard."""


class SavepointRelease(LeaderThread):
    """A thread that releases the savepoints that the platform has taken.

    It may be killed between any two lines.

    A savepoint stays while a job or a change uses it, and while a job has claimed it: that job deletes it.

    Args:
        sessions: The database.
        pulse: Shows whether this control plane leads, and in which epoch; only then it works.
        store: Looks for unreported savepoints.
    """

    def __init__(self, sessions: sessionmaker[Session], pulse: ReconcilerPulse, store: StoreCheck) -> None:
        self._store = store
        self._later_s: dict[tuple[str, int | str], float] = {}
        super().__init__("savepoint-release", POLL_S, sessions=sessions, pulse=pulse)

    def run(self, leadership: Leadership) -> int:
        """Makes one pass; returns how many savepoints it has released.

        Raises:
            LeadershipLostError: Another replica leads and continues.
        """
        now_s = time.monotonic()
        self._later_s = {key: until_s for key, until_s in self._later_s.items() if now_s < until_s}
        self._list_unreported(leadership, now_s)
        self._list_changed(leadership, now_s)
        with leadership.transaction() as session:
            found = [
                *snapshot_needs.releasable_savepoints(session),
                *outdated(savepoint_policies.kept_savepoints(session), now_ms()),
            ]
        released = 0
        for savepoint in found:
            key = savepoint.job_id, savepoint.checkpoint_id
            if self.is_closing or key in self._later_s:
                continue
            if _release(leadership, savepoint):
                released += 1
            else:
                self._later_s[key] = now_s + RETRY_S
        return released

    def work(self, leadership: Leadership) -> bool:
        self.run(leadership)
        return False

    def _list_unreported(self, leadership: Leadership, now_s: float) -> None:
        """Lists the savepoints that their drivers could not report.

        A cancel ends the operation while the driver may still publish, or has published and is not heard.
        """
        with leadership.transaction() as session:
            found = operations.without_savepoint(session, now_ms() - UNREPORTED_MS)
        for operation, store_url in found:
            published = self._find(store_url, operation.job_id, operation.id, now_s)
            if published is not None:
                with leadership.transaction() as session:
                    if jobs.lock(session, operation.job_id) is not None:
                        checkpoints.store_published(session, operation, **asdict(published))

    def _list_changed(self, leadership: Leadership, now_s: float) -> None:
        """Lists the savepoints of state changes whose control plane ended.

        Once the job has started, its state is another one, so the savepoint stays unlisted.
        """
        with leadership.transaction() as session:
            found = events.changes_without_savepoint(session, now_ms() - UNREPORTED_MS)
        for event, store_url in found:
            job_id, savepoint_id = str(event.job_id), event.details["savepoint_id"]
            published = self._find(store_url, job_id, savepoint_id, now_s)
            if published is None:
                continue
            with leadership.transaction() as session:
                job = jobs.lock(session, job_id)
                if job is None or not is_allowed(Action.CHANGE_STATE, job.status):
                    continue
                if checkpoints.find_savepoint(session, job_id, savepoint_id) is not None:
                    continue
                if _has_run_since(session, event) or event.details["checkpoint_id"] != published.checkpoint_id:
                    continue
                if checkpoints.find(session, job_id, published.checkpoint_id) is not None:
                    continue
                checkpoints.store_changed(session, job_id, savepoint_id, **asdict(published))
                events.record(
                    session,
                    job_id=job_id,
                    at_ms=now_ms(),
                    kind="STATE_CHANGED",
                    actor=event.actor,
                    message=event.message,
                    checkpoint_id=published.checkpoint_id,
                    location=published.location,
                    derived_from=event.details["derived_from"],
                )

    def _find(self, store_url: str, job_id: str, savepoint_id: str, now_s: float) -> PublishedSavepoint | None:
        """Returns a published savepoint, at most once per RETRY_S."""
        key = job_id, savepoint_id
        if self.is_closing or key in self._later_s:
            return None
        self._later_s[key] = now_s + RETRY_S
        try:
            return self._store.find_savepoint(store_url, job_id, savepoint_id)
        except StoreUnavailableError as error:
            logger.warning("savepoint %s of job %s is not known: %s", savepoint_id, job_id, error.detail)
            return None


def _has_run_since(session: Session, event: Event) -> bool:
    """Returns whether the job of a request has had an attempt since."""
    return attempts.next_number(session, str(event.job_id)) - 1 != event.details.get("attempt")


def _release(leadership: Leadership, candidate: Checkpoint) -> bool:
    """Releases a savepoint; returns False if something needs it."""
    location = candidate.external_path or ""
    with leadership.transaction() as session:
        job = jobs.find(session, candidate.job_id)
        if job is None or uses_of(session, job, candidate, lambda each: each.name):
            return False
    try:
        if claimant_of(open_to_read(job.store_url), split_location(location)[1]) is not None:
            return False
    except (KeyscaleError, OSError) as error:
        logger.warning("savepoint %s of job %s stays: %s", candidate.savepoint_id, job.id, error)
        return False
    with leadership.transaction() as session:
        locked = jobs.lock(session, candidate.job_id)
        operations.reserve_id(session, location)  # a start that restores from it waits
        savepoint = checkpoints.find(session, candidate.job_id, candidate.checkpoint_id)
        if locked is None or savepoint is None or savepoint.owner is not SnapshotOwner.PLATFORM:
            return False
        if uses_of(session, locked, savepoint, lambda each: each.name):
            return False
        savepoint.status, savepoint.discard_requested_at_ms = CheckpointStatus.DISCARDED, now_ms()
        events.record(
            session,
            job_id=locked.id,
            at_ms=savepoint.discard_requested_at_ms,
            kind="SAVEPOINT_DISCARDED",
            message=f"savepoint {savepoint.checkpoint_id} of operation {savepoint.savepoint_id} is needed no more",
            checkpoint_id=savepoint.checkpoint_id,
            location=location,
        )
    return True
