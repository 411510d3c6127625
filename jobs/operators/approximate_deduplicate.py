"""Deduplication with a Bloom filter.

The blocks of the filter are the state, by key group.

A generation holds the keys that were new during one TTL. A key is looked up in the current generation and in the
previous one, so it is remembered for at least the TTL and for less than twice the TTL. State has room for two
generations, an even and an odd one; each block names its generation, and counts as empty for every other generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from keyscale.state.doors.keyed import TimeDomain, Ttl, UpdateType, ValueStateDescriptor
from keyscale.state.doors.values import KEY_HASH_VERSION, key_hashes

from .bloom_filter import (
    BLOCK_BYTES,
    FILTER_VERSION,
    BloomFilter,
    Geometry,
    blocks_of,
    contained,
    geometry_of,
    insert,
    places_of,
)
from .deduplicate import FORM_PREFIX, check_form, stored_form
from .operator_contract import KEY_GROUP_COLUMN, Operator, OperatorLogic

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from keyscale.state.doors.keyed import KeyedStateBackend

    from ..functions.subtask_info import SubtaskInfo

_GENERATION_BYTES: Final = 8
_STORED_BYTES: Final = _GENERATION_BYTES + BLOCK_BYTES
_STORED_TYPE: Final = pa.binary(_STORED_BYTES)  # the number of the generation, little endian, and the block
_BLOCK_INDEX_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True)
class ApproximateDeduplicate(OperatorLogic):
    """The logic of an operator that emits each key's first record.

    It also drops a few new keys.

    Attributes:
        filter: The filter that remembers keys.
        ttl: How long a key is remembered at least; None for forever.
        geometry: The dimensions of each generation's filter.
    """

    filter: BloomFilter
    ttl: Ttl | None
    geometry: Geometry

    @classmethod
    def of(cls, declared: BloomFilter, ttl: Ttl | None) -> ApproximateDeduplicate:
        """Returns the logic with the smallest filters that keep the error rate.

        A TTL needs two filters.
        """
        kept = ttl if ttl is not None and ttl.enabled else None
        return cls(declared, kept, geometry_of(declared.error_rate if kept is None else declared.error_rate / 2))

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        return pa.schema([(stored_form(self._form, key), pa.bool_()), ("block", pa.uint32())])

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> ApproximateDeduplicateOperator:
        check_form(state, self._form)
        return ApproximateDeduplicateOperator(self, state, info)

    @property
    def _form(self) -> str:
        """A name of the layout that determines a key's bits and blocks.

        A filter with another layout would not find its keys.
        """
        of_time = "" if self.ttl is None else f".ttl{self.ttl.duration_ms}.{self.ttl.time_domain}"
        measures = f"c{self.filter.capacity}.k{self.geometry.bits_per_key}.n{self.geometry.keys_per_block}"
        return f"{FORM_PREFIX}bloom.v{FILTER_VERSION}.xxh64.v{KEY_HASH_VERSION}.{measures}{of_time}"


class ApproximateDeduplicateOperator(Operator):
    """Approximate deduplication running in one task."""

    def __init__(self, logic: ApproximateDeduplicate, state: KeyedStateBackend, info: SubtaskInfo) -> None:
        self._info = info
        self._ttl = logic.ttl
        self._bits_per_key = logic.geometry.bits_per_key
        self._blocks_per_group = logic.geometry.blocks_per_group(logic.filter.capacity, info.max_parallelism)
        self._clock = state.clock
        self._blocks = state.state(ValueStateDescriptor("blocks", _STORED_TYPE))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the first row of each new key, in order."""
        hashes = key_hashes([batch.column(name) for name in self._info.key_columns])
        distinct, first_rows = np.unique(hashes, return_index=True)
        groups = batch.column(KEY_GROUP_COLUMN).to_numpy()[first_rows]
        kept = np.zeros(batch.num_rows, np.bool_)
        kept[first_rows] = self._take(groups.astype(np.uint64), distinct)
        yield batch.select(self._info.output_schema.names).filter(pa.array(kept))

    def _take(self, groups: npt.NDArray[np.uint64], hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Returns which of some distinct keys are new, and adds them."""
        cells = groups << _BLOCK_INDEX_BITS | blocks_of(hashes, self._blocks_per_group)
        touched, rows = np.unique(cells, return_inverse=True)
        places = places_of(hashes, self._bits_per_key)
        generation = self._generation
        current, generations = self._read(touched, generation)
        is_current = contained(current, rows, places)
        is_known = is_current
        if self._ttl is not None:
            before, _ = self._read(touched, generation - 1)
            is_known = is_current | contained(before, rows, places)
        refreshes = self._ttl is not None and self._ttl.update_type is UpdateType.ON_READ_AND_WRITE
        added = ~(is_current if refreshes else is_known)
        insert(current, rows[added], places[added])
        changed = np.unique(rows[added])
        self._write(generation, touched[changed], generations[changed], current[changed])
        return ~is_known

    def _read(
        self, cells: npt.NDArray[np.uint64], generation: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Reads a generation's blocks as rows of a matrix.

        Missing blocks are zeros. Also returns each block's generation.

        A block of a later generation also counts: event time goes back once, when the first watermark replaces the time
        of the first events.
        """
        groups, keys = _keys_of(generation, cells)
        column = self._blocks.get_many(groups, keys)
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        blocks = np.zeros((len(cells), BLOCK_BYTES), np.uint8)
        generations = np.full(len(cells), generation, np.int64)
        if len(there):
            raw = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, _STORED_BYTES)
            stored = raw[column.offset + there]
            numbers = np.ascontiguousarray(stored[:, :_GENERATION_BYTES]).view("<i8").ravel()
            own = numbers >= generation
            blocks[there[own]] = stored[own, _GENERATION_BYTES:]
            generations[there[own]] = numbers[own]
        return blocks, generations

    def _write(
        self,
        generation: int,
        cells: npt.NDArray[np.uint64],
        generations: npt.NDArray[np.int64],
        blocks: npt.NDArray[np.uint8],
    ) -> None:
        groups, keys = _keys_of(generation, cells)
        stored = np.empty((len(cells), _STORED_BYTES), np.uint8)
        stored[:, :_GENERATION_BYTES] = generations.astype("<i8").view(np.uint8).reshape(-1, _GENERATION_BYTES)
        stored[:, _GENERATION_BYTES:] = blocks
        values = pa.Array.from_buffers(_STORED_TYPE, len(cells), [None, pa.py_buffer(stored)])
        self._blocks.put_many(groups, keys, values)

    @property
    def _generation(self) -> int:
        """The number of the current generation: TTLs since the epoch."""
        if self._ttl is None:
            return 0
        by_event = self._ttl.time_domain is TimeDomain.EVENT
        now_ms = self._clock.event_stamp_ms if by_event else self._clock.processing_time_ms
        return now_ms // self._ttl.duration_ms


def _keys_of(generation: int, cells: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int32], list[pa.Array]]:
    """Returns the key groups and the stored keys of blocks."""
    is_odd = np.full(len(cells), generation % 2 == 1)
    groups = (cells >> _BLOCK_INDEX_BITS).astype(np.int32)
    return groups, [pa.array(is_odd), pa.array(cells.astype(np.uint32))]
