"""Reads, changes and writes one entry of a map of 100.

Contenders are MapState, and ValueStates with the whole map. The data are users' visits by page: 100 of 10,000 paths of
about 21 characters each, with a count and a time.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from bench.store.keys import KeyColumn, key_column
from bench.store.lone_subtask import INT64_KEY, fresh_subtask, settle
from keyscale.identifiers import BatchId
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb_settings import MEBIBYTE, RocksDbSettings
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import MapStateDescriptor, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

ENTRIES = 100
PAGES = 10_000
BATCH_RECORDS = 10_000
FILL_KEYS = 500  # at a time
START_MS = 1_790_000_000_000
VISITS = pa.struct([("visits", pa.int64()), ("seen_ms", pa.int64())])
SETTINGS = RocksDbSettings(
    write_buffer_bytes=8 * MEBIBYTE, target_file_bytes=8 * MEBIBYTE, level_base_bytes=32 * MEBIBYTE
)
"""An eighth of the defaults, for several flushes and compactions within seconds."""


class Records(NamedTuple):
    """A batch as columns, with each row's key and page in Python."""

    key_groups: npt.NDArray[np.int32]
    keys: list[pa.Array]
    pages: pa.Array
    rows: list[tuple[int]]
    names: list[str]

    def each(self, backend: KeyedStateBackend) -> Iterator[str]:
        """Yields each row's page, with its key as the current key.

        A job's process functions get their records in the same way.
        """
        keys = backend.each_key(self.key_groups, self.keys, self.rows, [self.pages])
        return (page for _, page in zip(keys, self.names, strict=True))


class Users:
    """Users by number, each with the pages of its map."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(3)
        self.column: KeyColumn = key_column(np.arange(count, dtype=np.uint64))
        shops = random.integers(0, 100_000, PAGES).tolist()
        self.pages = [f"/catalogue/{shop:05d}/{page:04d}" for page, shop in enumerate(shops)]
        self._first_pages = random.integers(0, PAGES, count)
        self._random = random

    def __len__(self) -> int:
        return len(self.column)

    def pages_of(self, users: npt.NDArray[np.int64], entries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the pages of these entries of these users' maps."""
        return (self._first_pages[users] + entries * 997) % PAGES

    def records(self, count: int) -> Records:
        """Returns random visits of users to pages in their maps."""
        users = self._random.integers(0, len(self), count)
        pages = self.pages_of(users, self._random.integers(0, ENTRIES, count))
        groups, keys = self.column.key_groups[users], self.column.keys.take(pa.array(users))
        names = [self.pages[page] for page in pages.tolist()]
        return Records(groups, [keys], pa.array(names), [(key,) for key in keys.to_pylist()], names)

    def first_visits(self, count: int) -> pa.StructArray:
        """Returns the initial content of the maps."""
        visits = self._random.integers(1, 1000, count)
        return pa.StructArray.from_arrays(
            [pa.array(visits), pa.array(START_MS + visits * 3_600_000)], fields=list(VISITS)
        )


class Form(Protocol):
    """One way to keep the maps."""

    def fill(self, users: npt.NDArray[np.int64], pages: npt.NDArray[np.int64], visits: pa.StructArray) -> None:
        """Inserts whole maps, ENTRIES rows per user, user by user."""
        ...

    def count(self, records: Records) -> None:
        """Adds one to the visits of each record's entry."""
        ...


class _Maps:
    """MapState, record by record, as in process functions."""

    def __init__(self, backend: KeyedStateBackend, users: Users) -> None:
        self._backend = backend
        self._users = users
        self._state = backend.state(MapStateDescriptor("map", pa.string(), VISITS))
        self._names = pa.array(users.pages)

    def fill(self, users: npt.NDArray[np.int64], pages: npt.NDArray[np.int64], visits: pa.StructArray) -> None:
        column = self._users.column
        keys = [column.keys.take(pa.array(users))]
        self._state.put_many(column.key_groups[users], keys, self._names.take(pa.array(pages)), visits)

    def count(self, records: Records) -> None:
        get, put = self._state.get, self._state.put
        for page in records.each(self._backend):
            visited = get(page)
            put(page, {"visits": visited["visits"] + 1, "seen_ms": visited["seen_ms"] + 1000})


class _LoneReads(_Maps):
    """MapState, record by record, without read-ahead."""

    def count(self, records: Records) -> None:
        set_key, get, put = self._backend.set_current_key, self._state.get, self._state.put
        for group, key, page in zip(records.key_groups.tolist(), records.rows, records.names, strict=True):
            set_key(group, key)
            visited = get(page)
            put(page, {"visits": visited["visits"] + 1, "seen_ms": visited["seen_ms"] + 1000})


class _MapColumns(_Maps):
    """MapState, a batch at a time."""

    def count(self, records: Records) -> None:
        self._state.update_many(records.key_groups, records.keys, records.pages, _counted)


def _counted(current: pa.Array, groups: npt.NDArray[np.intp]) -> pa.Array:
    visits, seen_ms = current.flatten()
    more = np.bincount(groups, minlength=len(current))
    parts = [pa.array(visits.to_numpy() + more), pa.array(seen_ms.to_numpy() + 1000 * more)]
    return pa.StructArray.from_arrays(parts, fields=list(VISITS))


class _Dicts:
    """A ValueState of a dict."""

    def __init__(self, backend: KeyedStateBackend, users: Users) -> None:
        self._backend = backend
        self._users = users
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the measurement is about just this warning
            self._state = backend.state(ValueStateDescriptor("map", self.type))

    type: pa.DataType = pa.map_(pa.string(), VISITS)

    def fill(self, users: npt.NDArray[np.int64], pages: npt.NDArray[np.int64], visits: pa.StructArray) -> None:
        names, values = self._users.pages, visits.to_pylist()
        column = self._users.column
        for first in range(0, len(users), ENTRIES):
            rows = slice(first, first + ENTRIES)
            user = users[first]
            self._backend.set_current_key(int(column.key_groups[user]), (column.keys[int(user)].as_py(),))
            self._write({names[page]: each for page, each in zip(pages[rows].tolist(), values[rows], strict=True)})

    def count(self, records: Records) -> None:
        read, write = self._read, self._write
        for page in records.each(self._backend):
            visits = read()
            visited = visits[page]
            visits[page] = {"visits": visited["visits"] + 1, "seen_ms": visited["seen_ms"] + 1000}
            write(visits)

    def _read(self) -> dict[str, Any]:
        visits: dict[str, Any] = self._state.value()
        return visits

    def _write(self, visits: dict[str, Any]) -> None:
        self._state.update(visits)


class _PackedDicts(_Dicts):
    """A ValueState of bytes, packed with msgspec by the user.

    It is unchecked, and C code alone.
    """

    type = pa.binary()
    _pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
    _unpack: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode

    def _read(self) -> dict[str, Any]:
        visits: dict[str, Any] = type(self)._unpack(self._state.value())
        return visits

    def _write(self, visits: dict[str, Any]) -> None:
        self._state.update(type(self)._pack(visits))


def run(*, work: str, form: str, keys: int, records: int, heap: bool = False) -> Mapping[str, Any]:
    """Changes `records` random entries of the maps of `keys` keys.

    Each map has ENTRIES entries. The time covers reads, changes, each batch's synced changelog, and writing to the
    store until everything is flushed and compacted. With `heap`, the store is a dict, without changelogs.

    Returns:
        `rate`, and `record_cpu_us`: CPU time of all threads per record.
    """
    users = Users(keys)
    finish: Callable[[], None]
    rest: Callable[[], None]
    if heap:
        engine = HeapEngine()
        backend = KeyedStateBackend(engine, INT64_KEY, lambda: 0)

        def finish() -> None:
            engine.write_runs(backend.drain())

        def rest() -> None:
            pass
    else:
        subtask = fresh_subtask(work, INT64_KEY, SETTINGS)
        backend = subtask.keyed

        def finish() -> None:
            subtask.finish_batch(BatchId(subtask.version.batch_id + 1), "bench")

        def rest() -> None:
            settle(subtask)

    contender = _FORMS[form](backend, users)
    for first in range(0, keys, FILL_KEYS):
        filled = np.repeat(np.arange(first, min(first + FILL_KEYS, keys)), ENTRIES)
        pages = users.pages_of(filled, np.tile(np.arange(ENTRIES), len(filled) // ENTRIES))
        contender.fill(filled, pages, users.first_visits(len(filled)))
        finish()
    rest()
    seconds = cpu_seconds = 0.0
    for first in range(0, records, BATCH_RECORDS):
        batch = users.records(min(BATCH_RECORDS, records - first))
        started, cpu_started = time.perf_counter(), time.process_time()
        contender.count(batch)
        finish()
        if first + BATCH_RECORDS >= records:
            rest()
        seconds += time.perf_counter() - started
        cpu_seconds += time.process_time() - cpu_started
    return {"rate": records / seconds, "record_cpu_us": cpu_seconds / records * 1e6}


_FORMS: dict[str, Callable[[KeyedStateBackend, Users], Form]] = {
    "map": _Maps,
    "lone": _LoneReads,
    "columns": _MapColumns,
    "dict": _Dicts,
    "packed": _PackedDicts,
}
