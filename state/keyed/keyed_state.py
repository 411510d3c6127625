"""The base class of keyed state, and its context of keys.

The context has the current key and namespace, and the keys of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import DescriptorError, KeyGroupError, KeyTooLargeError, NoCurrentKeyError
from ..keys.key_groups import KEY_GROUP_BYTES, KeyGroupRange
from ..keys.stored_key import KeyBatch, check_key_size
from ..serializers.arrow_columns import fixed_values
from ..serializers.key_codecs import PRESENT, integer_packing
from ..serializers.key_columns import EncodedColumn, encode_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..serializers.key_codecs import KeyCodec
    from ..serializers.key_serializer import KeySerializer
    from .batch_memory import BatchMemory
    from .entries import Entries

KeyGroups: TypeAlias = npt.NDArray[np.integer[Any]] | pa.Array | pa.ChunkedArray
KeyColumns: TypeAlias = Sequence[pa.Array | pa.ChunkedArray] | pa.RecordBatch | pa.Table | pa.Array | pa.ChunkedArray

SAMPLE_ROWS = 256
"""Shows what most keys of a batch need; few, because single reads cost five times as much."""

_ROWS_AHEAD_MIN = 64  # reading fewer rows at once gains nothing over reading them one by one
_PRESENT = PRESENT[0]


class CurrentKey:
    """A backend's current key and batch of keys, shared by its states."""

    __slots__ = ("_batch", "_batch_of", "_bias", "_first", "_last", "_pack", "key", "prefix", "serializer")

    def __init__(self, serializer: KeySerializer, key_group_range: KeyGroupRange) -> None:
        self.serializer = serializer
        self.prefix: bytes | None = None  # key group and key
        self.key: tuple[Any, ...] | None = None
        self._first, self._last = key_group_range.start, key_group_range.end
        types = serializer.schema.types
        packing = integer_packing(types[0]) if len(types) == 1 else None
        self._pack = None if packing is None else struct.Struct(f">H{packing[0]}").pack
        self._bias = 0 if packing is None else packing[1]
        self._batch_of: tuple[Any, Any] | None = None
        self._batch: KeyBatch | None = None

    def set(self, key_group: int, key: tuple[Any, ...]) -> None:
        if not self._first <= key_group <= self._last:
            raise KeyGroupError(
                f"key group {key_group} is not in {self._first} to {self._last}, which this subtask owns"
            )
        if self._pack is not None and len(key) == 1 and type(key[0]) is int:
            try:
                self.prefix = self._pack(key_group, _PRESENT, key[0] + self._bias)
            except struct.error:
                pass  # the number is too large; the code below raises a clear error
            else:
                self.key = key
                return
        prefix = key_group.to_bytes(2, "big") + self.serializer.encode(key)
        check_key_size(prefix)
        self.prefix, self.key = prefix, key

    def clear(self) -> None:
        self.prefix = self.key = None

    def batch(self, key_groups: KeyGroups, keys: KeyColumns) -> KeyBatch:
        """Returns the stored keys of a batch of rows.

        Repeated calls with the same two objects encode them only once.
        """
        if self._batch is not None and self._batch_of is not None:
            known_groups, known_keys = self._batch_of
            if known_groups is key_groups and known_keys is keys:
                return self._batch
        if isinstance(keys, (pa.RecordBatch, pa.Table)):
            columns: Sequence[Any] = keys.columns
        else:
            columns = [keys] if isinstance(keys, (pa.Array, pa.ChunkedArray)) else keys
        groups = _numbers(key_groups)
        if len(groups) and not (self._first <= groups.min() and groups.max() <= self._last):
            raise KeyGroupError(
                f"a batch has key groups outside {self._first} to {self._last}, which this subtask owns"
            )
        encoded = self.serializer.encode_columns(columns)
        if len(encoded) != len(groups):
            raise KeyGroupError(f"a batch has {len(groups)} key groups and {len(encoded)} keys")
        self._batch = KeyBatch.encode(groups, encoded)
        self._batch_of = (key_groups, keys)
        return self._batch

    def sizes(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """Returns the bytes of each row's key, with its key group."""
        return self.serializer.encode_columns(columns).lengths + KEY_GROUP_BYTES

    def release_batch(self) -> None:
        """Releases the last batch's arrays."""
        self._batch = None
        self._batch_of = None


def _numbers(key_groups: KeyGroups) -> npt.NDArray[np.integer[Any]]:
    whole = key_groups.combine_chunks() if isinstance(key_groups, pa.ChunkedArray) else key_groups
    if not isinstance(whole, pa.Array):
        return np.asarray(whole)
    if whole.null_count:
        raise KeyGroupError("a batch has rows without a key group")
    return fixed_values(whole)


class KeyedState:
    """The base class of keyed state.

    It works on the backend's current key and on its own current namespace.

    Attributes:
        one_entry: Whether a key and namespace have a single entry, with a stored key of these two parts.
    """

    __slots__ = ("_context", "_entries", "_namespace", "_namespace_codec")

    one_entry: ClassVar[bool] = False

    def __init__(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None) -> None:
        self._entries = entries
        self._context = context
        self._namespace_codec = namespace
        self._namespace: bytes | None = b"" if namespace is None else None

    def fields_read_by(self, fields: Sequence[pa.Array]) -> Iterator[pa.Array | None]:  # noqa: ARG002 (for maps)
        """Yields the fields that follow the key in stored keys it reads.

        None stands for an empty rest.
        """
        if self.one_entry and self._namespace_codec is None:
            yield None

    def has_read_most(self, keys: set[bytes]) -> bool:
        """Returns whether this batch has read most of these stored keys."""
        return self._entries.has_read_most(keys)

    def read_ahead(self, keys: KeyBatch) -> None:
        """Reads the entries of these stored keys at once, for later reads."""
        self._entries.read_ahead(keys.distinct)

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace that the state works on.

        Raises:
            DescriptorError: The state was declared without a namespace.
            SerializationError: The namespace does not have the declared type.
        """
        if self._namespace_codec is None:
            raise DescriptorError(f"state {self._entries.family!r} was declared without a namespace")
        self._namespace = self._namespace_codec.encode(namespace)

    def _prefix(self) -> bytes:
        """Returns the stored key of the current key and namespace."""
        key, namespace = self._context.prefix, self._namespace
        if key is None or namespace is None:
            raise NoCurrentKeyError(
                f"state {self._entries.family!r} was used without a current {'key' if key is None else 'namespace'}"
            )
        return key + namespace if namespace else key

    def _prefix_in(self, namespace: Any) -> bytes:
        """Returns the stored key of the current key and a given namespace."""
        if self._namespace_codec is None:
            raise DescriptorError(f"state {self._entries.family!r} was declared without a namespace")
        if self._context.prefix is None:
            raise NoCurrentKeyError(f"state {self._entries.family!r} was used without a current key")
        return self._context.prefix + self._namespace_codec.encode(namespace)

    def _batch(self, key_groups: KeyGroups, keys: KeyColumns) -> KeyBatch:
        batch = self._context.batch(key_groups, keys)
        if self._namespace is None:
            raise NoCurrentKeyError(f"state {self._entries.family!r} was used without a current namespace")
        if not self._namespace:
            return batch
        scope = np.tile(np.frombuffer(self._namespace, np.uint8), (len(batch), 1))
        return batch.extended(EncodedColumn.fixed(scope))


def walk_keys(
    context: CurrentKey,
    batch: KeyBatch,
    keys: Iterable[tuple[Any, ...]],
    fields: Sequence[pa.Array],
    states: Callable[[], Iterable[KeyedState]],
    *,
    memory: BatchMemory,
) -> Iterator[tuple[Any, ...]]:
    """Makes each row's key the current key, in turn, and yields it.

    The first rows are a sample. If most of their keys were read from a state, that state is read for all keys of the
    batch, sorted, in a fraction of the time. A map is read in the same way if most sample rows read it at the value of
    the same field. If the sample took much memory, states are read for fewer rows at a time.

    Args:
        context: Gets the current key.
        batch: The rows' stored keys.
        keys: The rows' keys.
        fields: The rows' other fields.
        states: Returns all states; called after the sample, which may declare further states.
        memory: The memory of the batch's entries.
    """
    upcoming = iter(keys)
    before_bytes = memory.large_bytes
    # Prefixes come first, so that zip takes no further key at the end of the sample.
    for context.prefix, context.key in zip(batch.head(SAMPLE_ROWS).rows(), upcoming, strict=False):
        yield context.key
    if len(batch) <= SAMPLE_ROWS:
        return
    readers = _readers(states(), batch, fields)
    rows_ahead = memory.rows_ahead(SAMPLE_ROWS, memory.large_bytes - before_bytes)
    if SAMPLE_ROWS + rows_ahead >= len(batch):
        for state, field in readers:
            _read_ahead(state, batch, field)
        # After a read these are the same objects as in `distinct`, which dicts find faster.
        for context.prefix, context.key in zip(batch.rows()[SAMPLE_ROWS:], upcoming, strict=False):
            yield context.key
        return
    for first in range(SAMPLE_ROWS, len(batch), rows_ahead):
        part = batch.part(first, first + rows_ahead)
        for state, field in readers if rows_ahead >= _ROWS_AHEAD_MIN else []:
            _read_ahead(state, part, None if field is None else field[first : first + rows_ahead])
        for context.prefix, context.key in zip(part.rows(), upcoming, strict=False):
            yield context.key


def _readers(
    states: Iterable[KeyedState], batch: KeyBatch, fields: Sequence[pa.Array]
) -> list[tuple[KeyedState, pa.Array | None]]:
    """Returns the states that most sample rows read, each with its field."""
    sample, readers = batch.head(SAMPLE_ROWS), []
    for state in states:
        for field in state.fields_read_by(fields):
            try:
                read = sample if field is None else sample.extended(encode_column(field[:SAMPLE_ROWS]))
            except KeyTooLargeError:
                continue  # the field may not be a user key at all
            if state.has_read_most(set(read.rows())):
                readers.append((state, field))
    return readers


def _read_ahead(state: KeyedState, batch: KeyBatch, field: pa.Array | None) -> None:
    with suppress(KeyTooLargeError):  # as above
        state.read_ahead(batch if field is None else batch.extended(encode_column(field)))
