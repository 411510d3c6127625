"""Stored keys, which order entries by key group, key and namespace.

The form is `key_group (2 bytes, big endian) | key | namespace [| user key]`.

Every part delimits itself. So stored keys are injective and ordered by their parts, and the entries of a key group, of
a key and of a map each form one contiguous range. The void namespace takes no bytes: the state's schema says whether it
has namespaces. The user key is a map's key, or the index of an element in a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from ..errors import CorruptValueError, KeyTooLargeError
from ..serializers.arrow_columns import column_over, fixed_values
from ..serializers.key_columns import EncodedColumn, join_columns
from .key_groups import KEY_GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from ..serializers.key_codecs import KeyCodec
    from ..serializers.key_serializer import KeySerializer

KEY_BYTES_MAX = 65_535
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The parts of a stored key.

    `user_key` is a map's key or a list index, None for other kinds of state.
    """

    key_group: int
    key: tuple[Any, ...]
    namespace: Any
    user_key: Any


def parse_stored_key(
    raw: bytes, keys: KeySerializer, namespace: KeyCodec | None, user_key: KeyCodec | None, *, indexed: bool = False
) -> StoredKey:
    """Returns the parts of a stored key.

    Args:
        raw: The stored key.
        keys: The serializer of the key.
        namespace: The codec of the namespace; None if the state has no namespaces.
        user_key: The codec of the map's key; None if the state is not a map.
        indexed: Whether the user key is a list index.

    Raises:
        CorruptValueError: The bytes do not have these parts.
    """
    key_group = int.from_bytes(raw[:KEY_GROUP_BYTES], "big")
    key, at = keys.decode(raw, KEY_GROUP_BYTES)
    scope, part = None, None
    if namespace is not None:
        scope, at = namespace.decode(raw, at)
    if user_key is not None:
        part, at = user_key.decode(raw, at)
    elif indexed:
        part = decode_index(raw[at:])
        at = len(raw)
    if at != len(raw):
        raise CorruptValueError("a stored key has bytes after its last part")
    return StoredKey(key_group, key, scope, part)


def prefix_end(prefix: bytes) -> bytes:
    """Returns the first bytes after all keys with a prefix.

    The prefix begins with a key group, so it is never all ones.
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def encode_index(index: int) -> bytes:
    """Returns a list index as its length in bytes and its bytes.

    The bytes are big endian: ordered, and short for short lists.
    """
    size = (index.bit_length() + 7) // 8
    return bytes((size,)) + index.to_bytes(size, "big")


def decode_index(raw: bytes) -> int:
    """Returns the index that `encode_index` encoded."""
    if not raw or raw[0] != len(raw) - 1:
        raise CorruptValueError("a stored key does not end in a list index")
    return int.from_bytes(raw[1:], "big")


def check_key_size(raw: bytes) -> None:
    """Checks the length of a stored key.

    Raises:
        KeyTooLargeError: The key has more than 65,535 bytes.
    """
    if len(raw) > KEY_BYTES_MAX:
        raise KeyTooLargeError(
            f"a key with its namespace and map key takes {len(raw)} bytes; {KEY_BYTES_MAX} are allowed"
        )


class KeyBatch:
    """The stored keys of a batch of rows, encoded once.

    Any number of states use them. Batch operations work on `distinct`, the different keys in ascending order: RocksDB
    reads and writes sorted keys several times as fast.
    """

    __slots__ = ("_column", "_distinct", "_first_rows", "_groups", "_order", "_starts")

    def __init__(self, column: EncodedColumn) -> None:
        if len(column):
            longest = column.longest
            if longest > KEY_BYTES_MAX:
                raise KeyTooLargeError(
                    f"a key with its namespace and map key takes {longest} bytes; {KEY_BYTES_MAX} are allowed"
                )
        self._column = column
        self._distinct: StoredKeys | None = None

    @classmethod
    def encode(cls, key_groups: npt.NDArray[np.integer[Any]], key: EncodedColumn) -> KeyBatch:
        """Returns the batch with one key group and encoded key per row."""
        groups = np.ascontiguousarray(key_groups, ">u2").view(np.uint8).reshape(-1, KEY_GROUP_BYTES)
        return cls(join_columns([EncodedColumn.fixed(groups), key]))

    def __len__(self) -> int:
        return len(self._column)

    @property
    def column(self) -> EncodedColumn:
        """The stored key of each row, in row order."""
        return self._column

    def extended(self, part: EncodedColumn) -> KeyBatch:
        """Returns the stored keys with one more part each."""
        return KeyBatch(join_columns([self._column, part]))

    def head(self, rows: int) -> KeyBatch:
        """Returns the stored keys of the first rows."""
        return self.part(0, rows)

    def part(self, first: int, end: int) -> KeyBatch:
        """Returns the stored keys of the rows from `first` to before `end`."""
        return KeyBatch(self._column.part(first, end))

    def rows(self) -> list[bytes]:
        """Returns the stored key of each row, in row order.

        After `distinct` was used, they are the same objects as in it.
        """
        if self._distinct is None:
            return self._column.to_list()
        return list(map(self._distinct.__getitem__, self._groups.tolist()))

    @property
    def distinct(self) -> StoredKeys:
        """The different stored keys, ascending."""
        if self._distinct is None:
            self._sort()
        return self._distinct  # type: ignore[return-value]  # _sort sets it

    @property
    def first_rows(self) -> npt.NDArray[np.intp]:
        """The first row of each distinct key."""
        self.distinct  # noqa: B018 (sorts)
        return self._first_rows

    @property
    def last_rows(self) -> npt.NDArray[np.intp]:
        """The last row of each distinct key."""
        self.distinct  # noqa: B018 (sorts)
        ends = np.append(self._starts, len(self._order))[1:] - 1
        last: npt.NDArray[np.intp] = self._order[ends]
        return last

    @property
    def groups(self) -> npt.NDArray[np.intp]:
        """The position of each row's key in `distinct`."""
        self.distinct  # noqa: B018 (sorts)
        return self._groups

    def _sort(self) -> None:
        self._order, first = stored_order(self._column)
        if self._column.width:
            self._distinct = StoredKeys.of_rows(self._column.matrix()[self._order[first]])
        else:
            self._distinct = StoredKeys(self._column.arrow().take(column_over(self._order[first])).to_pylist())
        self._starts = np.flatnonzero(first)
        self._first_rows = self._order[self._starts]
        self._groups = np.empty(len(first), np.intp)
        self._groups[self._order] = np.cumsum(first) - 1


def stored_order(column: EncodedColumn) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Returns the stable order of encoded keys, and the key changes.

    The second result marks keys that differ from the previous key.
    """
    if column.width:
        return sort_rows(column.matrix())
    array = column.arrow()
    indices = pc.array_sort_indices(array)  # stable
    ordered = array.take(indices)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = fixed_values(pc.not_equal(ordered[1:], ordered[:-1]))
    return fixed_values(indices).astype(np.intp), first


def sort_rows(matrix: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Returns the stable order of a matrix's rows, and the row changes.

    Rows are compared as byte strings; the second result marks rows that differ from the previous row in the order. Rows
    are first sorted by the first eight of the bytes in which any two rows differ, with an unstable sort, which is
    several times as fast as a stable sort. Only rows with equal values in these bytes are then sorted by the other
    bytes.
    """
    first = np.ones(len(matrix), np.bool_)
    if not len(matrix):
        return np.empty(0, np.intp), first
    words = _words(matrix)
    order = np.argsort(words[0])
    leading = words[0][order]
    tied = leading[1:] == leading[:-1]
    if tied.any():
        in_ties = np.zeros(len(matrix), np.bool_)
        in_ties[1:] = tied
        in_ties[:-1] |= tied
        places = np.flatnonzero(in_ties)
        rows = order[places]
        order[places] = rows[np.lexsort([rows, *[word[rows] for word in reversed(words)]])]
        after = np.flatnonzero(tied) + 1
        first[after] = np.any([word[order[after]] != word[order[after - 1]] for word in words], axis=0)
    return order, first


def _words(matrix: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint64]]:
    """Returns the bytes in which rows differ, as equally ordered numbers.

    Each number has eight bytes; there is at least one column.
    """
    rows, width = matrix.shape
    varying = _varying(matrix)
    if width >= _WORD_BYTES and len(varying) and varying[-1] - varying[0] < _WORD_BYTES:
        return [_word_at(matrix, min(varying[0], width - _WORD_BYTES))]
    count = max(1, -(-len(varying) // _WORD_BYTES))
    padded = np.zeros((rows, count * _WORD_BYTES), np.uint8)
    padded[:, : len(varying)] = matrix[:, varying]
    return [_word_at(padded, start) for start in range(0, count * _WORD_BYTES, _WORD_BYTES)]


def _varying(matrix: npt.NDArray[np.uint8]) -> list[int]:
    """Returns the places of the bytes in which any two rows differ."""
    width = matrix.shape[1]
    if width < _WORD_BYTES:
        return [int(place) for place in np.flatnonzero((matrix != matrix[0]).any(axis=0))]
    found: set[int] = set()
    for start in [*range(0, width - _WORD_BYTES, _WORD_BYTES), width - _WORD_BYTES]:
        word = _word_at(matrix, start)
        different = int(np.bitwise_or.reduce(word ^ word[0])).to_bytes(_WORD_BYTES, "big")
        found.update(start + place for place, bits in enumerate(different) if bits)
    return sorted(found)


def _word_at(matrix: npt.NDArray[np.uint8], start: int) -> npt.NDArray[np.uint64]:
    """Returns eight bytes of each row of a contiguous matrix."""
    rows, width = matrix.shape
    return np.ndarray((rows,), ">u8", matrix, start, (width,)).astype(np.uint64)


class StoredKeys(list[bytes]):
    """An immutable list of stored keys.

    `matrix` has one key per row, or is None if the keys differ in length. Iterating over the objects of a large batch
    takes many times as long as processing the matrix.
    """

    __slots__ = ("matrix",)

    def __init__(self, keys: Iterable[bytes], matrix: npt.NDArray[np.uint8] | None = None) -> None:
        super().__init__(keys)
        self.matrix = matrix

    @classmethod
    def of_rows(cls, matrix: npt.NDArray[np.uint8]) -> StoredKeys:
        """Returns the rows of a contiguous matrix with at least one column."""
        return cls(matrix.view(f"V{matrix.shape[1]}").ravel().tolist(), matrix)

    def where(self, kept: Sequence[bool]) -> StoredKeys:
        """Returns the keys for which `kept` is true."""
        return StoredKeys(compress(self, kept), None if self.matrix is None else self.matrix.compress(kept, axis=0))
