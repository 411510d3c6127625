"""One entry of a map of 100 read, changed and written: MapState, and a ValueState that holds the whole map."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.store.keys import key_column
from bench.store.lone_subtask import INT64_KEY, fresh_subtask
from state.descriptors import MapStateDescriptor, ValueStateDescriptor
from state.identifiers import BatchId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state.keyed import KeyedStateBackend

ENTRIES = 100
BATCH_RECORDS = 10_000
FILL_KEYS = 1000  # at a time


def run(*, work: str, form: str, keys: int, records: int) -> Mapping[str, Any]:
    """Change `records` entries at random of the maps of `keys` keys, which have ENTRIES entries each.

    The time counts all of it: reads, changes, and each batch's changelog and writing to the store.
    """
    column = key_column(np.arange(keys, dtype=np.uint64))
    groups, values = column.key_groups.tolist(), column.keys.to_pylist()
    random = np.random.default_rng(3)
    rows, entries = random.integers(0, keys, records).tolist(), random.integers(0, ENTRIES, records).tolist()
    names = [f"entry {number}" for number in range(ENTRIES)]
    subtask = fresh_subtask(work, INT64_KEY)
    fill, change = (_map_state if form == "map" else _value_state)(subtask.keyed)
    filled = 0
    for filled, first in enumerate(range(0, keys, FILL_KEYS)):
        for group, key in zip(groups[first : first + FILL_KEYS], values[first : first + FILL_KEYS], strict=True):
            subtask.keyed.set_current_key(group, (key,))
            fill(dict.fromkeys(names, 1))
        subtask.finish_batch(BatchId(filled), "bench")
    subtask.engine.flush()  # so that both forms read files
    started = time.perf_counter()
    for number, first in enumerate(range(0, records, BATCH_RECORDS), filled + 1):
        for row, entry in zip(rows[first : first + BATCH_RECORDS], entries[first : first + BATCH_RECORDS], strict=True):
            subtask.keyed.set_current_key(groups[row], (values[row],))
            change(names[entry])
        subtask.finish_batch(BatchId(number), "bench")
    return {"rate": records / (time.perf_counter() - started)}


def _map_state(backend: KeyedStateBackend) -> tuple[Callable[[dict[str, int]], None], Callable[[str], None]]:
    state = backend.map_state(MapStateDescriptor("map", pa.string(), pa.int64()))

    def change(name: str) -> None:
        state.put(name, state.get(name) + 1)

    return state.put_all, change


def _value_state(backend: KeyedStateBackend) -> tuple[Callable[[dict[str, int]], None], Callable[[str], None]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning is about just what is measured here
        state = backend.value_state(ValueStateDescriptor("map", pa.map_(pa.string(), pa.int64())))

    def change(name: str) -> None:
        entries = dict(state.value())
        entries[name] += 1
        state.update(entries)

    return state.update, change
