"""Removes from the object store what no retained checkpoint needs, beside the batches and not too often."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from jobs.runtime.clock import now_ms
from state.errors import KeyscaleError
from state.retention import RetentionPolicy, carry_out, gather_facts, plan_deletion

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.identifiers import JobId
    from state.objects import ObjectStore

_log = logging.getLogger(__name__)

FIRST_SECONDS = 60.0
INTERVAL_SECONDS = 900.0  # a pass lists all of the job's objects and reads its log


class Collector:
    """Runs a pass of retention in a thread of its own when one is due.

    Args:
        store: The object store.
        job_id: Whose objects.
        policy: What is kept.
        allowed: Whether a pass may run: not while the control plane knows only checkpoints that are about to go.
        is_overtaken: Whether a newer attempt has begun. Asked when all facts are gathered: an attempt that begins later
            finds in the store all that this pass does not delete, and chooses from that.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_id: JobId,
        policy: RetentionPolicy,
        *,
        allowed: Callable[[], bool],
        is_overtaken: Callable[[], bool],
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._policy = policy
        self._allowed = allowed
        self._is_overtaken = is_overtaken
        self._due_at = time.monotonic() + FIRST_SECONDS
        self._thread: threading.Thread | None = None

    def collect_if_due(self) -> None:
        """Start a pass, unless one runs, it is too early, or none is allowed. Returns at once."""
        running = self._thread is not None and self._thread.is_alive()
        if running or time.monotonic() < self._due_at or not self._allowed():
            return
        self._due_at = time.monotonic() + INTERVAL_SECONDS
        self._thread = threading.Thread(target=self.collect, name="collector", daemon=True)
        self._thread.start()

    def collect(self) -> None:
        """Run one pass. A failure leaves things for the next one."""
        try:
            facts = gather_facts(self._store, self._job_id, now_ms())
            if not self._is_overtaken():
                carry_out(self._store, plan_deletion(facts, self._policy))
        except KeyscaleError as error:
            _log.warning("nothing more was removed from the object store: %s: %s", error.code, error)
