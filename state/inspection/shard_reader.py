"""Reads stored entries from shards fetched into a scratch directory."""

from __future__ import annotations

import shutil
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..documents.state_version import NO_BATCH
from ..engine.sharded import ShardedEngine
from ..restore.rebuild import replay
from .fetched_shards import close_all, open_fetched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.identifiers import BatchId

    from ..engine.engine import Engine
    from ..keys.key_groups import KeyGroupRange
    from .state_point import StatePoint
    from .state_table import RawEntry


@dataclass(slots=True)
class _Opened:
    engines: list[tuple[KeyGroupRange, Engine]]
    directory: Path
    batch_id: BatchId
    size_bytes: int
    users: int = 0


class ShardReader:
    """Reads entries of a job's state at one point.

    A few shards stay open after a read, because all states of an operator are in the same files, and a query may read
    a state several times. Reads may run in several threads.
    """

    def __init__(
        self, point: StatePoint, scratch: Path, *, open_max: int = 1, open_bytes_max: int | None = None
    ) -> None:
        """Creates the reader.

        Args:
            point: The state to read.
            scratch: An existing directory with room for the shards that are open at once.
            open_max: How many shards stay open after a read.
            open_bytes_max: How many bytes they may have fetched together; None: any number.
        """
        self._point = point
        self._scratch = scratch
        self._open_max = open_max
        self._open_bytes_max = open_bytes_max
        self._opened: dict[tuple[str, KeyGroupRange], _Opened] = {}  # the last used one is the last
        self._lock = threading.Lock()

    def advance(self, point: StatePoint) -> None:
        """Continues at a later point of the same attempt.

        Open shards follow when they are read next. No read may be in progress.
        """
        with self._lock:
            self._point = point

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
            known = self._opened.pop((uid, shard), None)
            opened = (known and self._followed(known, uid, shard)) or self._open(uid, shard)
            self._opened[uid, shard] = opened
            opened.users += 1
            self._close_unused()
        try:
            yield ShardedEngine(opened.engines)
        finally:
            with self._lock:
                opened.users -= 1
                self._close_unused()

    def _followed(self, opened: _Opened, uid: str, shard: KeyGroupRange) -> _Opened | None:
        """Applies later batches to an open shard.

        Closes it, and returns None, if their changelogs may be gone.
        """
        point = self._point
        if (NO_BATCH if point.manifest is None else point.manifest.batch_id) > opened.batch_id:
            _remove(opened)
            return None
        later = [
            each
            for each in point.operator(uid).changelogs
            if each.batch_id > opened.batch_id and each.key_groups.intersection(shard)
        ]
        try:
            if later:
                replay(point.store, later, shard, ShardedEngine(opened.engines), opened.directory / "replay")
        except BaseException:
            _remove(opened)
            raise
        opened.batch_id = point.batch_id
        return opened

    def _open(self, uid: str, shard: KeyGroupRange) -> _Opened:
        history = self._point.operator(uid)
        directory = self._scratch / uuid.uuid4().hex
        changelogs = [each for each in history.changelogs if each.key_groups.intersection(shard)]
        try:
            engines = open_fetched(self._point.store, history.snapshots, shard, directory, changelogs=changelogs)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return _Opened(engines, directory, self._point.batch_id, self._point.size_bytes(uid, shard))

    def _close_unused(self) -> None:
        for place in [place for place, opened in self._opened.items() if not opened.users]:
            if not self._has_too_many():
                break
            _remove(self._opened.pop(place))

    def _has_too_many(self) -> bool:
        size_bytes = sum(opened.size_bytes for opened in self._opened.values())
        return len(self._opened) > self._open_max or (
            self._open_bytes_max is not None and size_bytes > self._open_bytes_max
        )


def _remove(opened: _Opened) -> None:
    close_all(opened.engines)
    shutil.rmtree(opened.directory, ignore_errors=True)
