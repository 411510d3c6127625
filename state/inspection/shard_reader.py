"""Reads stored entries from shards fetched into a scratch directory."""

from __future__ import annotations

import shutil
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.sharded import ShardedEngine
from .fetched_shards import close_all, open_fetched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..engine.engine import Engine
    from ..keys.key_groups import KeyGroupRange
    from .state_point import StatePoint
    from .state_table import RawEntry


@dataclass(slots=True)
class _Opened:
    engines: list[tuple[KeyGroupRange, Engine]]
    directory: Path
    users: int = 0


class ShardReader:
    """Reads entries of a job's state at one point.

    A few shards stay open after a read, because all states of an operator are in the same files, and a query may read
    a state several times. Reads may run in several threads.
    """

    def __init__(self, point: StatePoint, scratch: Path, *, open_max: int = 1) -> None:
        """Creates the reader.

        Args:
            point: The state to read.
            scratch: An existing directory with room for the shards that are open at once.
            open_max: How many shards stay open after a read.
        """
        self._point = point
        self._scratch = scratch
        self._open_max = open_max
        self._opened: dict[tuple[str, KeyGroupRange], _Opened] = {}  # the last used one is the last
        self._lock = threading.Lock()

    def entries(self, uid: str, family: str, shard: KeyGroupRange, start: bytes, end: bytes) -> Iterator[RawEntry]:
        """Yields a state's entries in a range of stored keys.

        Args:
            uid: The operator.
            family: The state or the timers.
            shard: One of the ranges of `StatePoint.shard_ranges`.
            start: The first stored key.
            end: The stored key after the last one.

        Raises:
            ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """
        with self._engine(uid, shard) as engine:
            yield from engine.scan(family, start, end)

    def close(self) -> None:
        """Closes all shards and removes their files; closing twice is harmless."""
        with self._lock:
            for opened in self._opened.values():
                _remove(opened)
            self._opened.clear()

    @contextmanager
    def _engine(self, uid: str, shard: KeyGroupRange) -> Iterator[Engine]:
        with self._lock:
            opened = self._opened.pop((uid, shard), None) or self._open(uid, shard)
            self._opened[uid, shard] = opened
            opened.users += 1
            self._close_unused()
        try:
            yield ShardedEngine(opened.engines)
        finally:
            with self._lock:
                opened.users -= 1
                self._close_unused()

    def _open(self, uid: str, shard: KeyGroupRange) -> _Opened:
        history = self._point.operator(uid)
        directory = self._scratch / uuid.uuid4().hex
        changelogs = [each for each in history.changelogs if each.key_groups.intersection(shard)]
        try:
            engines = open_fetched(self._point.store, history.snapshots, shard, directory, changelogs=changelogs)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return _Opened(engines, directory)

    def _close_unused(self) -> None:
        unused = [place for place, opened in self._opened.items() if not opened.users]
        for place in unused[: max(0, len(self._opened) - self._open_max)]:
            _remove(self._opened.pop(place))


def _remove(opened: _Opened) -> None:
    close_all(opened.engines)
    shutil.rmtree(opened.directory, ignore_errors=True)
