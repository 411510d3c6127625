"""Stores that stay open between batches, and are handed over the moment another process wants them."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state.errors import KeyscaleError
from state.restore import version_of
from state.subtask import SubtaskStore, now_ms, open_subtask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state.objects import ObjectStore
    from state.restore import RestorePlan
    from state.subtask_spec import SubtaskSpec
    from state.ttl import Clock
    from state.version import StateVersion

logger = logging.getLogger(__name__)
IDLE_SECONDS_MAX = 30.0  # less than the minute after which Spark ends a Python worker that nobody needs
STORES_MAX = 64
_IDLE_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Idle:
    store: SubtaskStore
    since: float


class WarmStores:
    """One process's stores between two batches. Make one a process, after its fork.

    An idle store keeps its subtask's directory locked. A thread closes it cleanly as soon as another process asks for the
    directory, or when it has been idle for long: a process that is killed while it keeps stores warm costs a rebuild from the
    last checkpoint and the changelogs since.

    Args:
        idle_seconds_max: For how long a store is kept; 0 closes each at once.
        stores_max: How many are kept; those that have been idle longest are closed first.
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
        plan: RestorePlan,
        local_root: Path,
        store: ObjectStore,
        *,
        clock: Clock | Callable[[], int] = now_ms,
    ) -> SubtaskStore:
        """As `open_subtask`, with a store that is still open at exactly this version if there is one.

        Such a store shows the clock's times, if both are clocks; a function is only asked by the store that was opened with it.
        """
        with self._lock:
            idle = self._idle.pop(spec.local_directory(local_root), None)
        if idle is not None:
            led_to = version_of(plan, spec.key_group_range, version.batch_id)
            # Operator state that is to be dealt out is dealt to all subtasks, or some elements would be doubled and others lost.
            is_dealt = idle.store.operator.is_restored == plan.operator_state.is_to_be_dealt
            same = idle.store.spec == spec and led_to == version and is_dealt
            if idle.store.is_superseded():
                _close(idle.store)
            elif same and idle.store.resume(version, clock, store):
                return idle.store
            else:
                idle.store.abandon()
        return open_subtask(spec, version, plan, local_root, store, clock=clock)

    @contextmanager
    def held(
        self,
        spec: SubtaskSpec,
        version: StateVersion,
        plan: RestorePlan,
        local_root: Path,
        store: ObjectStore,
        *,
        clock: Clock | Callable[[], int] = now_ms,
    ) -> Iterator[SubtaskStore]:
        """A store that is taken, and given back if all goes well; on any exception it is abandoned."""
        taken = self.take(spec, version, plan, local_root, store, clock=clock)
        try:
            yield taken
        except BaseException:
            taken.abandon()
            raise
        self.give_back(taken)

    def give_back(self, store: SubtaskStore) -> None:
        """Keep a store whose batch is finished; it is this object's to close from now on.

        Raises:
            StateError: Its files cannot be written. It has been abandoned.
        """
        if not self._idle_seconds_max:
            store.close()
            return
        try:
            store.rest()
        except KeyscaleError:
            store.abandon()
            raise
        with self._lock:
            self._idle[store.local_directory] = _Idle(store, time.monotonic())
            surplus = [self._idle.pop(path) for path in list(self._idle)[: -self._stores_max]]
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="warm-stores", daemon=True)
                self._watcher.start()
        os.eventfd_write(self._wake, 1)
        for idle in surplus:
            _close(idle.store)

    def close(self) -> None:
        """Close all idle stores cleanly."""
        with self._lock:
            stores = [idle.store for idle in self._idle.values()]
            self._idle.clear()
        for store in stores:
            _close(store)

    def _watch(self) -> None:
        while True:
            with self._lock:
                due = time.monotonic() - self._idle_seconds_max
                released = [path for path, idle in self._idle.items() if idle.since < due or idle.store.bell.was_rung]
                stores = [self._idle.pop(path).store for path in released]
                poller = select.poll()
                for watched in [self._wake, *[idle.store.bell.fileno() for idle in self._idle.values()]]:
                    poller.register(watched, select.POLLIN)
            for store in stores:
                _close(store)
            # A bell may meanwhile be that of a store which has been taken: then this was for nothing, once.
            if (self._wake, select.POLLIN) in poller.poll(_IDLE_POLL_SECONDS * 1000):
                os.eventfd_read(self._wake)


def _close(store: SubtaskStore) -> None:
    try:
        store.close()
    except KeyscaleError:
        logger.warning(
            "closing the idle state of subtask %d failed; it will be rebuilt", store.spec.index, exc_info=True
        )
