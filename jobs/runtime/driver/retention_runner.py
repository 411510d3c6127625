"""Deletes unneeded objects and unfinished writes.

Retained checkpoints do not need the objects. Passes run beside the batches and not too often.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.errors import KeyscaleError
from keyscale.state.doors.commits import CommitLog, RetentionPolicy, delete_planned, gather_facts, plan_deletion
from keyscale.state.doors.objects import StoreRefusedError
from keyscale.state.doors.paths import Layout

from ...protocol.messages import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.identifiers import JobId
    from keyscale.state.doors.objects import ObjectStore

    from ..control.driver_status import DriverStatus

logger = logging.getLogger(__name__)

FIRST_SECONDS = 60.0
INTERVAL_SECONDS = 900.0  # a pass lists all of the job's objects


class RetentionRunner:
    """Runs due retention passes in a separate thread.

    Attributes:
        policy: Which checkpoints the next pass keeps.

    Args:
        store: The object store.
        job_id: The job that owns the deleted objects.
        policy: Which checkpoints are kept.
        allowed: Whether a pass may run: not while the control plane knows only checkpoints that the pass would delete.
        wait_until_rebased: Returns when running batches can be rebuilt only from the newest checkpoint.
        is_overtaken: Whether a newer attempt has begun. Called when all facts are gathered: an attempt that begins
            later chooses from the objects that this pass leaves in the store. Called again periodically.
        status: Takes the deletions, or why a pass failed.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_id: JobId,
        policy: RetentionPolicy,
        *,
        allowed: Callable[[], bool],
        wait_until_rebased: Callable[[], None],
        is_overtaken: Callable[[], bool],
        status: DriverStatus,
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._log = CommitLog(store, Layout(job_id))
        self.policy = policy
        self._allowed = allowed
        self._wait_until_rebased = wait_until_rebased
        self._is_overtaken = is_overtaken
        self._status = status
        self._may_remove_writes = True
        self._due_at = time.monotonic() + FIRST_SECONDS
        self._thread: threading.Thread | None = None

    def run_if_due(self) -> None:
        """Starts a pass if one is due and allowed.

        Returns immediately.
        """
        running = self._thread is not None and self._thread.is_alive()
        if running or time.monotonic() < self._due_at or not self._allowed():
            return
        self._due_at = time.monotonic() + INTERVAL_SECONDS
        self._thread = threading.Thread(target=self.run, name="retention", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Runs one pass.

        After a failure, a pass follows soon and deletes the rest.
        """
        self._wait_until_rebased()
        try:
            facts = gather_facts(self._store, self._job_id, now_ms(), self._log).by_store_clock()
            deleted = delete_planned(self._store, plan_deletion(facts, self.policy), self._is_overtaken)
            removed_writes = self._remove_unfinished_writes(facts.now_ms)
        except KeyscaleError as error:
            logger.warning("the retention pass failed: %s: %s", error.code, error)
            failure = Failure(code=error.code, message=str(error), advice=error.advice)
            self._status.clean_up_failed(now_ms(), failure)
            self._due_at = time.monotonic() + FIRST_SECONDS
        else:
            self._status.cleaned_up(now_ms(), deleted, removed_writes)

    def _remove_unfinished_writes(self, store_now_ms: int) -> int:
        if not self._may_remove_writes or self._is_overtaken():
            return 0
        try:
            return self._store.remove_unfinished(Layout(self._job_id).job, store_now_ms - self.policy.age_floor_ms)
        except StoreRefusedError as error:
            logger.warning("unfinished uploads stay in the object store, which refuses to remove them: %s", error)
            self._may_remove_writes = False
            return 0
