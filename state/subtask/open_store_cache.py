"""Stores that stay open between batches until another process requests them."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.errors import KeyscaleError

from ..restore.plan import DeferredPlan, version_of
from .store import SubtaskStore, open_subtask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ..documents.state_version import StateVersion
    from ..keyed.batch_clock import Clock
    from ..local.subtask_spec import SubtaskSpec
    from ..objects.object_store import ObjectStore
    from ..restore.plan import RestorePlan

logger = logging.getLogger(__name__)
IDLE_SECONDS_MAX = 30.0  # less than the minute after which Spark ends an idle Python worker
STORES_MAX = 64
_IDLE_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Idle:
    store: SubtaskStore
    since: float


class OpenStoreCache:
    """One process's open stores between two batches.

    Create one per process, after its fork. An idle store keeps its subtask's directory locked. A thread closes the
    store cleanly as soon as another process requests the directory, or after a long idle time. If the process is
    killed, the state of its idle stores is rebuilt from the last checkpoint and the later changelogs.

    Args:
        idle_seconds_max: How long a store stays open; 0 closes each at once.
        stores_max: How many stay open; the longest idle store is closed first.
    """

    def __init__(self, idle_seconds_max: float = IDLE_SECONDS_MAX, stores_max: int = STORES_MAX) -> None:
        self._idle_seconds_max = idle_seconds_max
        self._stores_max = stores_max
        self._idle: dict[Path, _Idle] = {}  # the longest idle first
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._wake = os.eventfd(0)

    def take(
        self,
        spec: SubtaskSpec,
        version: StateVersion,
        plan: RestorePlan | DeferredPlan,
        local_root: Path,
        store: ObjectStore,
        *,
        clock: Clock | Callable[[], int] = now_ms,
    ) -> SubtaskStore:
        """Returns a store as `open_subtask` does, reusing an open store if possible.

        The open store must be at the version, or behind it on the plan: then it catches up. If both clocks are
        `Clock`s, the store takes the new clock's times. A store calls only the clock function that it was opened with.
        """
        with self._lock:
            idle = self._idle.pop(spec.local_directory(local_root), None)
        if idle is not None:
            # A deferred plan is compared with the version if the state is rebuilt.
            planned = (
                isinstance(plan, DeferredPlan) or version_of(plan, spec.key_group_range, version.batch_id) == version
            )
            # Operator state is redistributed in all subtasks or in none: otherwise elements would be doubled or lost.
            is_redistributed = idle.store.operator.is_restored == plan.operator_state.needs_redistribution
            same = idle.store.spec == spec and planned and is_redistributed
            if idle.store.is_superseded():
                _close(idle.store)
            elif same and idle.store.resume(version, clock, store):
                return _refreshed(idle.store, plan, store)
            elif idle.store.spec == spec and _catch_up(idle.store, version, plan, store):
                idle.store.resume(version, clock, store)
                return idle.store
            else:
                idle.store.abandon()
        return open_subtask(spec, version, plan, local_root, store, clock=clock)

    @contextmanager
    def held(
        self,
        spec: SubtaskSpec,
        version: StateVersion,
        plan: RestorePlan | DeferredPlan,
        local_root: Path,
        store: ObjectStore,
        *,
        clock: Clock | Callable[[], int] = now_ms,
    ) -> Iterator[SubtaskStore]:
        """Takes a store, and gives it back or abandons it (on exceptions)."""
        taken = self.take(spec, version, plan, local_root, store, clock=clock)
        try:
            yield taken
        except BaseException:
            taken.abandon()
            raise
        self.give_back(taken)

    def give_back(self, store: SubtaskStore) -> None:
        """Keeps a store with a finished batch; only this object closes it.

        Raises:
            StateError: The store's files cannot be written. It has been abandoned.
        """
        if not self._idle_seconds_max:
            store.close()
            return
        try:
            store.flush_if_large()
        except KeyscaleError:
            store.abandon()
            raise
        with self._lock:
            self._idle[store.local_directory] = _Idle(store, time.monotonic())
            surplus = [self._idle.pop(path) for path in list(self._idle)[: -self._stores_max]]
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="open-stores", daemon=True)
                self._watcher.start()
        os.eventfd_write(self._wake, 1)
        for idle in surplus:
            _close(idle.store)

    def abandon_older(self, spec: SubtaskSpec) -> None:
        """Abandons the idle stores of the job's earlier attempts.

        Batches do not use them again. Does not wait.
        """
        with self._lock:
            older = [
                path
                for path, idle in self._idle.items()
                if idle.store.spec.job_id == spec.job_id and idle.store.spec.attempt < spec.attempt
            ]
            stores = [self._idle.pop(path).store for path in older]
        if stores:
            threading.Thread(target=_abandon, args=(stores,), name="older-stores", daemon=True).start()

    def close(self) -> None:
        """Closes all idle stores cleanly."""
        with self._lock:
            stores = [idle.store for idle in self._idle.values()]
            self._idle.clear()
        for store in stores:
            _close(store)

    def _watch(self) -> None:
        while True:
            with self._lock:
                due = time.monotonic() - self._idle_seconds_max
                released = [
                    path
                    for path, idle in self._idle.items()
                    if idle.since < due or idle.store.hand_over_signal.is_requested
                ]
                stores = [self._idle.pop(path).store for path in released]
                poller = select.poll()
                for watched in [self._wake, *[idle.store.hand_over_signal.fileno() for idle in self._idle.values()]]:
                    poller.register(watched, select.POLLIN)
            for store in stores:
                _close(store)
            # A signal may belong to a store that has been taken in the meantime; this round then finds nothing.
            if (self._wake, select.POLLIN) in poller.poll(_IDLE_POLL_SECONDS * 1000):
                os.eventfd_read(self._wake)


def _refreshed(store: SubtaskStore, plan: RestorePlan | DeferredPlan, objects: ObjectStore) -> SubtaskStore:
    try:
        store.refresh_operator_state(plan.operator_state, objects)
    except BaseException:
        store.abandon()
        raise
    return store


def _catch_up(
    store: SubtaskStore, version: StateVersion, plan: RestorePlan | DeferredPlan, objects: ObjectStore
) -> bool:
    try:
        return store.catch_up(version, plan.load() if isinstance(plan, DeferredPlan) else plan, objects)
    except KeyscaleError:
        logger.warning("the open state of subtask %d cannot catch up; it is rebuilt", store.spec.index, exc_info=True)
        return False


def _abandon(stores: Sequence[SubtaskStore]) -> None:
    for store in stores:
        store.abandon()


def _close(store: SubtaskStore) -> None:
    if store.is_removed:
        store.abandon()
        return
    try:
        store.close()
    except KeyscaleError:
        logger.warning(
            "closing the idle state of subtask %d failed; it will be rebuilt", store.spec.index, exc_info=True
        )
