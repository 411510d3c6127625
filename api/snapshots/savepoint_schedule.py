"""Takes savepoints by jobs' policies, and has them verified."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from keyscale.db.models.operation import SAVEPOINT_POLICY
from keyscale.db.repositories import jobs, savepoint_policies
from keyscale.vocabulary import OperationKind, Role

from ..access.principal import Principal
from ..database_clock import shared_now_ms
from ..errors import ApiError
from ..lifecycle import requests
from ..maintenance.leader_thread import LeaderThread
from ..maintenance.savepoint_policy import is_due
from . import verifications

if TYPE_CHECKING:
    from ..control_plane.context import Context
    from ..lifecycle.leadership import Leadership

logger = logging.getLogger(__name__)

POLL_S = 15.0
_POLICY = Principal(SAVEPOINT_POLICY, SAVEPOINT_POLICY, Role.ADMIN)


class SavepointSchedule(LeaderThread):
    """A thread that takes and verifies the savepoints of policies.

    It may be killed between any two lines.

    Args:
        context: The control plane.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        super().__init__("savepoint-schedule", POLL_S, sessions=context.sessions, pulse=context.pulse)

    def poll(self, leadership: Leadership) -> None:
        """Looks once at the policies of all jobs.

        Raises:
            LeadershipLostError: Another replica leads and continues.
        """
        at_ms = shared_now_ms()
        with leadership.transaction() as session:
            running = savepoint_policies.running_policies(session)
            kept = savepoint_policies.kept_savepoints(session)
        for each in running:
            if is_due(each, at_ms):
                self._take(leadership, each.job_id)
        for unverified in (each.savepoint for each in kept if each.savepoint.verification is None):
            self._verify(unverified.job_id, unverified.checkpoint_id)

    def work(self, leadership: Leadership) -> bool:
        self.poll(leadership)
        return False

    def _take(self, leadership: Leadership, job_id: str) -> None:
        try:
            with leadership.transaction() as session:
                job = jobs.lock(session, job_id)
                if job is not None:
                    requests.snapshot(session, job, _POLICY, uuid.uuid4().hex, OperationKind.SAVEPOINT)
        except ApiError as refusal:  # the job is being changed, or many snapshots wait: later
            logger.info("job %s: no savepoint of its policy now: %s", job_id, refusal)
        else:
            self._context.wakeup.ring()

    def _verify(self, job_id: str, checkpoint_id: int) -> None:
        try:
            verifications.begin(self._context, _POLICY, job_id, checkpoint_id, hashes=False)
        except ApiError as refusal:  # others are being verified: later
            logger.info("job %s: savepoint %d is not verified now: %s", job_id, checkpoint_id, refusal)
