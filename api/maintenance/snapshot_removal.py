"""Removes the objects of deleted checkpoints and savepoints.

A user has deleted the snapshots. The removal runs beside the reconciler.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, events
from keyscale.identifiers import JobId
from keyscale.state.doors.catalogue import delete_snapshot
from keyscale.state.doors.paths import split_location
from keyscale.units import bytes_text, counted

from ..store_check import open_to_read
from .leader_thread import LeaderThread

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.db.models import Checkpoint
    from keyscale.state.doors.catalogue import SnapshotObjects

    from ..lifecycle.leadership import Leadership
    from ..lifecycle.reconciler import ReconcilerPulse

logger = logging.getLogger(__name__)

POLL_S = 2.0
RETRY_S = 60.0


class SnapshotRemoval(LeaderThread):
    """A thread that deletes the objects of deleted snapshots.

    It may be killed between any two lines.

    A failed deletion is tried again after a while. Events report how much was deleted.

    Args:
        sessions: The database.
        pulse: Shows whether this control plane leads, and in which epoch; only then it works.
    """

    def __init__(self, sessions: sessionmaker[Session], pulse: ReconcilerPulse) -> None:
        self._later_s: dict[tuple[str, int], float] = {}
        super().__init__("snapshot-removal", POLL_S, sessions=sessions, pulse=pulse)

    def work(self, leadership: Leadership) -> bool:
        """Deletes the objects of the longest pending deletion, if any.

        Returns whether there was a deletion.

        Raises:
            LeadershipLostError: Another replica leads and continues.
        """
        now_s = time.monotonic()
        self._later_s = {key: until_s for key, until_s in self._later_s.items() if now_s < until_s}
        with leadership.transaction() as session:
            due = checkpoints.first_discarded(session, list(self._later_s))
        if due is None:
            return False
        found, store_url = due
        try:
            path = split_location(found.external_path or "")[1]
            done = delete_snapshot(open_to_read(store_url), JobId(found.job_id), path)
        except Exception as error:  # noqa: BLE001 - a failing snapshot must not keep the objects of other snapshots
            logger.warning("checkpoint %d of job %s cannot be deleted: %s", found.checkpoint_id, found.job_id, error)
            self._later_s[found.job_id, found.checkpoint_id] = now_s + RETRY_S
        else:
            _deleted(leadership, found, done)
        return True


def _deleted(leadership: Leadership, found: Checkpoint, done: SnapshotObjects) -> None:
    noun = "savepoint" if found.is_savepoint else "checkpoint"
    size_bytes = sum(done.own.values())
    with leadership.transaction() as session:
        row = checkpoints.find(session, found.job_id, found.checkpoint_id)
        if row is None:  # the job was deleted
            return
        row.objects_deleted_at_ms = now_ms()
        events.record(
            session,
            job_id=found.job_id,
            at_ms=row.objects_deleted_at_ms,
            kind=f"{noun.upper()}_DELETED",
            message=(
                f"deleted {counted(len(done.own), 'object')} of {noun} {found.checkpoint_id}, {bytes_text(size_bytes)}"
            ),
            checkpoint_id=found.checkpoint_id,
            objects=len(done.own),
            size_bytes=size_bytes,
        )
