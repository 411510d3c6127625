"""What all handles on keyed state share: the key they are bound to, the namespace, and the encoding of batches of keys."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.columns import fixed_values
from state.errors import DescriptorError, KeyGroupError, NoCurrentKeyError
from state.key_groups import MAX_PARALLELISM_UPPER_BOUND, KeyGroupRange
from state.serializers import EncodedColumn
from state.serializers.key_codecs import PRESENT, integer_packing
from state.stored_key import KeyBatch, check_key_size

if TYPE_CHECKING:
    from state.entries import Entries
    from state.serializers import KeyCodec, KeySerializer

KeyGroups: TypeAlias = npt.NDArray[np.integer[Any]] | pa.Array | pa.ChunkedArray
KeyColumns: TypeAlias = Sequence[pa.Array | pa.ChunkedArray] | pa.RecordBatch | pa.Table | pa.Array | pa.ChunkedArray


_PRESENT = PRESENT[0]


def _numbers(key_groups: KeyGroups) -> npt.NDArray[np.integer[Any]]:
    whole = key_groups.combine_chunks() if isinstance(key_groups, pa.ChunkedArray) else key_groups
    if not isinstance(whole, pa.Array):
        return np.asarray(whole)
    if whole.null_count:
        message = "a batch has rows without a key group"
        raise KeyGroupError(message)
    return fixed_values(whole)


class KeyContext:
    """The current key of a backend, and the keys of the batch at hand; shared by all its handles."""

    __slots__ = ("_batch", "_batch_of", "_bias", "_first", "_last", "_pack", "key", "prefix", "serializer")

    def __init__(self, serializer: KeySerializer, key_group_range: KeyGroupRange | None) -> None:
        self.serializer = serializer
        self.prefix: bytes | None = None  # key group and key
        self.key: tuple[Any, ...] | None = None
        owned = key_group_range or KeyGroupRange(0, MAX_PARALLELISM_UPPER_BOUND - 1)
        self._first, self._last = owned.start, owned.end
        types = serializer.schema.types
        packing = integer_packing(types[0]) if len(types) == 1 else None
        self._pack = None if packing is None else struct.Struct(f">H{packing[0]}").pack
        self._bias = 0 if packing is None else packing[1]
        self._batch_of: tuple[Any, Any] | None = None
        self._batch: KeyBatch | None = None

    def set(self, key_group: int, key: tuple[Any, ...]) -> None:
        if not self._first <= key_group <= self._last:
            message = f"key group {key_group} is not in {self._first} to {self._last}, which this subtask owns"
            raise KeyGroupError(message)
        if self._pack is not None and len(key) == 1 and type(key[0]) is int:
            try:
                self.prefix = self._pack(key_group, _PRESENT, key[0] + self._bias)
            except struct.error:
                pass  # too large a number
            else:
                self.key = key
                return
        prefix = key_group.to_bytes(2, "big") + self.serializer.encode(key)
        check_key_size(prefix)
        self.prefix, self.key = prefix, key

    def clear(self) -> None:
        self.prefix = self.key = None

    def batch(self, key_groups: KeyGroups, keys: KeyColumns) -> KeyBatch:
        """The stored keys of a batch of rows; encoded once for all states that are given the same two objects."""
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
            message = f"a batch has key groups outside {self._first} to {self._last}, which this subtask owns"
            raise KeyGroupError(message)
        encoded = self.serializer.encode_columns(columns)
        if len(encoded) != len(groups):
            message = f"a batch has {len(groups)} key groups and {len(encoded)} keys"
            raise KeyGroupError(message)
        self._batch = KeyBatch.encode(groups, encoded)
        self._batch_of = (key_groups, keys)
        return self._batch

    def forget_batch(self) -> None:
        """Let the last batch's arrays go."""
        self._batch = None
        self._batch_of = None


class KeyedState:
    """Base of all handles on keyed state. A handle works on the backend's current key and on its own namespace.

    Attributes:
        one_entry: Whether a key and namespace have one entry, under their stored key itself.
    """

    __slots__ = ("_context", "_entries", "_namespace", "_namespace_codec")

    one_entry: ClassVar[bool] = False

    def __init__(self, entries: Entries, context: KeyContext, namespace: KeyCodec | None) -> None:
        self._entries = entries
        self._context = context
        self._namespace_codec = namespace
        self._namespace: bytes | None = b"" if namespace is None else None

    def fields_read_by(self, fields: Sequence[pa.Array]) -> Iterator[pa.Array | None]:  # noqa: ARG002 - for those that have more
        """Which of a record's fields may be, in stored keys, all that follows its key; None for a state that is read by the key itself."""
        if self.one_entry and self._namespace_codec is None:
            yield None

    def has_read_most(self, keys: set[bytes]) -> bool:
        """Whether this batch has read most of these stored keys from the store."""
        return self._entries.has_read_most(keys)

    def read_ahead(self, keys: KeyBatch) -> None:
        """Read what the store has for these stored keys, all at once, for reads to come."""
        self._entries.read_ahead(keys.distinct)

    def set_current_namespace(self, namespace: Any) -> None:
        """Choose the namespace that the handle works on; only of a state that was declared with one.

        Raises:
            DescriptorError: The state has none.
            SerializationError: The namespace is not of the declared type.
        """
        if self._namespace_codec is None:
            message = f"state {self._entries.family!r} was declared without a namespace"
            raise DescriptorError(message)
        self._namespace = self._namespace_codec.encode(namespace)

    def _prefix(self) -> bytes:
        """The stored key of the current key and namespace."""
        key, namespace = self._context.prefix, self._namespace
        if key is None or namespace is None:
            message = f"state {self._entries.family!r} was used with no current {'key' if key is None else 'namespace'}"
            raise NoCurrentKeyError(message)
        return key + namespace if namespace else key

    def _prefix_in(self, namespace: Any) -> bytes:
        """The stored key of the current key and a given namespace."""
        if self._namespace_codec is None:
            message = f"state {self._entries.family!r} was declared without a namespace"
            raise DescriptorError(message)
        if self._context.prefix is None:
            message = f"state {self._entries.family!r} was used with no current key"
            raise NoCurrentKeyError(message)
        return self._context.prefix + self._namespace_codec.encode(namespace)

    def _batch(self, key_groups: KeyGroups, keys: KeyColumns) -> KeyBatch:
        batch = self._context.batch(key_groups, keys)
        if self._namespace is None:
            message = f"state {self._entries.family!r} was used with no current namespace"
            raise NoCurrentKeyError(message)
        if not self._namespace:
            return batch
        scope = np.tile(np.frombuffer(self._namespace, np.uint8), (len(batch), 1))
        return batch.extended(EncodedColumn.fixed(scope))
