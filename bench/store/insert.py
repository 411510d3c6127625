"""Insert-if-absent of batches of 100,000 keys, nine in ten new.

Contenders are Keyscale, a plain rocksdict loop, and the heap.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from bench.peers.task import folder_bytes
from bench.store.keys import BATCH_KEYS, batches_of_keys
from bench.store.lone_subtask import INT64_KEY, STRING_KEY, fresh_subtask
from keyscale.identifiers import BatchId
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.store.keys import KeyColumn

DAY_MS = 86_400_000
DEFAULT_BUDGET_BYTES = RocksDbSettings().memory_budget_bytes


class Inserter(Protocol):
    """One way of inserting."""

    def insert(self, batch_id: int, keys: KeyColumn) -> int:
        """Inserts a whole batch; returns the number of new keys."""
        ...

    def disk_bytes(self) -> int:
        """Returns the bytes of the state's files after compaction."""
        ...


class SubtaskInserter:
    """Keyscale's way, as in a task.

    It takes the columnar form, then the changelog, durable in the object store, then the store.
    """

    def __init__(self, work: str, settings: RocksDbSettings, *, uuids: bool, ttl: bool) -> None:
        self._work = work
        self._subtask = fresh_subtask(work, STRING_KEY if uuids else INT64_KEY, settings)
        descriptor = ValueStateDescriptor("seen", pa.bool_(), ttl=Ttl(DAY_MS) if ttl else None)
        self._seen = self._subtask.keyed.state(descriptor)

    def insert(self, batch_id: int, keys: KeyColumn) -> int:
        new = self._seen.insert_if_absent_many(keys.key_groups, [keys.keys], True)
        self._subtask.finish_batch(BatchId(batch_id), "bench")
        return int(new.sum())

    def disk_bytes(self) -> int:
        self._subtask.engine.flush()
        self._subtask.engine.compact()
        self._subtask.close()
        return sum(file.stat().st_size for file in Path(self._work, "local").rglob("*.sst"))


class HeapInserter:
    """Keyscale's backend over a dict, without a changelog."""

    def __init__(self, *, uuids: bool, ttl: bool) -> None:
        self._engine = HeapEngine()
        self._backend = KeyedStateBackend(self._engine, STRING_KEY if uuids else INT64_KEY, lambda: 0)
        self._seen = self._backend.state(ValueStateDescriptor("seen", pa.bool_(), ttl=Ttl(DAY_MS) if ttl else None))

    def insert(self, batch_id: int, keys: KeyColumn) -> int:  # noqa: ARG002 - the heap keeps no batches
        new = self._seen.insert_if_absent_many(keys.key_groups, [keys.keys], True)
        self._engine.write_runs(self._backend.drain())
        return int(new.sum())

    def disk_bytes(self) -> int:
        return 0


class PlainInserter:
    """A loop with rocksdict alone, without changelog and TTL.

    It gets a list, and writes the absent keys as a WriteBatch.
    """

    def __init__(self, work: str) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        table = BlockBasedOptions()
        table.set_bloom_filter(10, False)
        table.set_block_cache(Cache(256 << 20))
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_write_buffer_size(64 << 20)
        self._folder = Path(work, "plain")
        self._database = Rdict(str(self._folder), options)
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[assignment,method-assign] # its stub calls the setter a method

    def insert(self, batch_id: int, keys: KeyColumn) -> int:  # noqa: ARG002 - a plain loop knows no batches
        stored = _stored_keys(keys)
        found: list[Any] = self._database.get(stored)  # type: ignore[arg-type,assignment] # untyped, and its list is invariant
        new = dict.fromkeys(key for key, value in zip(stored, found, strict=True) if value is None)
        batch = WriteBatch(raw_mode=True)
        for key in new:
            batch.put(key, b"\1")
        self._database.write(batch, self._unlogged)
        return len(new)

    def disk_bytes(self) -> int:
        self._database.flush()
        self._database.compact_range(None, None)
        self._database.close()
        return folder_bytes(self._folder)


def run(
    *,
    work: str,
    engine: str,
    keys: int,
    windows: Sequence[int] = (),
    stops: Sequence[int] = (),
    uuids: bool = False,
    ttl: bool = False,
    size: bool = False,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
) -> Mapping[str, Any]:
    """Inserts `keys` keys, and stops this process at each of `stops`.

    It stops until it is continued. Keyscale's store has `budget_bytes` of memory.

    Returns:
        `rate` over all; for each window's end the rate up to there: `rate_at_...` over the last 1,000,000 keys,
        `rate_near_...` over the last 5,000,000, in which a store merges its files several times; `new`,
        `bytes_per_key`.
    """
    inserter = _inserter(work, engine, budget_bytes, uuids=uuids, ttl=ttl)
    stopping = {stop // BATCH_KEYS for stop in stops}
    clock = [0.0]
    new = 0
    busy = 0.0
    for number, batch in enumerate(batches_of_keys(0, keys, uuids=uuids)):
        started = time.perf_counter()
        new += inserter.insert(number, batch)
        busy += time.perf_counter() - started
        clock.append(busy)
        if len(clock) - 1 in stopping:
            signal.raise_signal(signal.SIGSTOP)
    answer: dict[str, Any] = {"rate": keys / busy, "new": new}
    for window in windows:
        end = window // BATCH_KEYS
        for name, span in (("at", 1_000_000), ("near", 5_000_000)):
            begin = max(0, end - span // BATCH_KEYS)
            answer[f"rate_{name}_{window}"] = (end - begin) * BATCH_KEYS / (clock[end] - clock[begin])
    if size:
        answer["bytes_per_key"] = inserter.disk_bytes() / new
    return answer


def _inserter(work: str, engine: str, budget_bytes: int, *, uuids: bool, ttl: bool) -> Inserter:
    if engine == "plain":
        return PlainInserter(work)
    if engine == "heap":
        return HeapInserter(uuids=uuids, ttl=ttl)
    return SubtaskInserter(work, RocksDbSettings(memory_budget_bytes=budget_bytes), uuids=uuids, ttl=ttl)


def _stored_keys(keys: KeyColumn) -> list[bytes]:
    """Returns key group and key, as in Keyscale's store.

    It supports the plain loop's keys: 64-bit integers and text.
    """
    groups = [int(group).to_bytes(2, "big") for group in keys.key_groups.tolist()]
    if pa.types.is_integer(keys.keys.type):
        raw = keys.keys.to_numpy().astype(">i8").tobytes()
        return [group + raw[at : at + 8] for group, at in zip(groups, range(0, len(raw), 8), strict=True)]
    return [group + key.encode() for group, key in zip(groups, keys.keys.to_pylist(), strict=True)]
