"""The memory of one batch over many times the memory budget.

The batch reads, writes or replays values of one size.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.store.keys import key_column
from bench.store.lone_subtask import INT64_KEY, local_root, object_store, spec_of
from keyscale.identifiers import BatchId
from keyscale.state.engine.rocksdb_settings import MEBIBYTE, RocksDbSettings
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.subtask.store import open_subtask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeAlias

    from bench.store.keys import KeyColumn
    from keyscale.state.subtask.store import SubtaskStore

    Form: TypeAlias = Callable[[SubtaskStore, KeyColumn, "Blobs"], None]

ROWS_A_RECORD_BATCH = 10_000  # as Spark sends them
BLOBS = ValueStateDescriptor("blob", pa.binary())
_FILL_BYTES = 4 * MEBIBYTE  # of a batch that makes the state


class Blobs:
    """Keys, and values of a size that does not compress."""

    def __init__(self, value_bytes: int, count: int) -> None:
        self._bytes = np.random.default_rng(3).bytes(value_bytes + MEBIBYTE)
        self._value_bytes = value_bytes
        self._count = count
        self.filled_at_once = max(1, _FILL_BYTES // value_bytes)

    def batches(self, rows: int = ROWS_A_RECORD_BATCH) -> Iterator[KeyColumn]:
        for first in range(0, self._count, rows):
            yield key_column(np.arange(first, min(first + rows, self._count), dtype=np.uint64))

    def values(self, keys: KeyColumn) -> Iterator[bytes]:
        for number in keys.numbers.tolist():
            start = number % MEBIBYTE
            yield self._bytes[start : start + self._value_bytes]


def run(*, work: str, form: str, value_bytes: int, total_bytes: int, budget_bytes: int) -> Mapping[str, Any]:
    """Runs a batch over `total_bytes` in values of `value_bytes`.

    The store has a budget of `budget_bytes`.

    Returns:
        `peak_bytes`: the most memory that the batch took beyond what the process took before it.
    """
    blobs = Blobs(value_bytes, total_bytes // value_bytes)
    settings = RocksDbSettings(memory_budget_bytes=budget_bytes, background_consolidation=False)
    spec = replace(spec_of(INT64_KEY), settings=settings)
    objects, plan = object_store(work), RestorePlan()
    store = open_subtask(spec, None, plan, local_root(work), objects)
    if form in {"read", "columns"}:
        for keys in blobs.batches(blobs.filled_at_once):
            plan = _batch(store, plan, _write, blobs, [keys])
    if form == "replay":
        plan = _batch(store, plan, _write, blobs, blobs.batches())
    version = store.version
    store.close()
    before = _begin()
    root = Path(work, "elsewhere") if form == "replay" else local_root(work)
    store = open_subtask(spec, version, plan, root, objects)
    if form != "replay":
        _batch(store, plan, _FORMS[form], blobs, blobs.batches())
    peak_bytes = _memory("VmHWM") - before
    store.close()
    return {"peak_bytes": peak_bytes}


def _batch(
    store: SubtaskStore, plan: RestorePlan, form: Form, blobs: Blobs, batches: Iterable[KeyColumn]
) -> RestorePlan:
    """Runs one batch, as a task does."""
    batch_id = BatchId(store.version.batch_id + 1)
    store.begin_batch(batch_id)
    for keys in batches:
        first = 0
        while first < len(keys):
            part = keys.part(first, first + store.keyed.rows_at_once)
            form(store, part, blobs)
            store.keyed.make_room(len(part))
            first += len(part)
    return plan.followed_by(store.finish_batch(batch_id, "bench"))


def _write(store: SubtaskStore, keys: KeyColumn, blobs: Blobs) -> None:
    state = store.keyed.state(BLOBS)
    for _, value in zip(_each(store, keys), blobs.values(keys), strict=True):
        state.update(value)


def _read(store: SubtaskStore, keys: KeyColumn, blobs: Blobs) -> None:  # noqa: ARG001
    state = store.keyed.state(BLOBS)
    for _ in _each(store, keys):
        state.value()


def _columns(store: SubtaskStore, keys: KeyColumn, blobs: Blobs) -> None:  # noqa: ARG001
    store.keyed.state(BLOBS).get_many(keys.key_groups, [keys.keys])


def _each(store: SubtaskStore, keys: KeyColumn) -> Iterator[Any]:
    return store.keyed.each_key(keys.key_groups, [keys.keys], zip(keys.keys.to_pylist(), strict=True))


_FORMS: dict[str, Form] = {"write": _write, "read": _read, "columns": _columns}


def _begin() -> int:
    """Returns this process's memory, and restarts the count of the peak."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets the peak to the present value
    return _memory("VmRSS")


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024
