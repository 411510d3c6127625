"""The stored key: `key_group (2 bytes, big endian) | key | namespace [| user key]`.

Every part delimits itself, so stored keys are injective and ordered by their parts, and a key group, a key and a map's entries are
each one contiguous range. The void namespace is no bytes at all: whether a state has namespaces is in its schema. The user key
is a map's key, or the place of an element in a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from state.columns import column_over, fixed_values
from state.errors import CorruptValueError, KeyTooLargeError
from state.key_groups import KEY_GROUP_BYTES
from state.serializers.key_columns import EncodedColumn, join_columns
from state.stored_keys import StoredKeys

if TYPE_CHECKING:
    import numpy.typing as npt

    from state.serializers import KeyCodec, KeySerializer

KEY_BYTES_MAX = 65_535


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The parts of a stored key; `user_key` is a map's key or a list's index, None for other kinds."""

    key_group: int
    key: tuple[Any, ...]
    namespace: Any
    user_key: Any


def parse_stored_key(
    raw: bytes, keys: KeySerializer, namespace: KeyCodec | None, user_key: KeyCodec | None, *, indexed: bool = False
) -> StoredKey:
    """The parts of a stored key.

    Raises:
        CorruptValueError: It is no stored key of these parts.
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
        message = "a stored key has bytes after its last part"
        raise CorruptValueError(message)
    return StoredKey(key_group, key, scope, part)


def prefix_end(prefix: bytes) -> bytes:
    """The first bytes after all that begin with `prefix`, which begins with a key group and so is never all ones."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def encode_index(index: int) -> bytes:
    """A list index: a byte that counts the bytes that follow, big endian. Ordered, and short for short lists."""
    size = (index.bit_length() + 7) // 8
    return bytes((size,)) + index.to_bytes(size, "big")


def decode_index(raw: bytes) -> int:
    """The index that `encode_index` stored."""
    if not raw or raw[0] != len(raw) - 1:
        message = "a stored key does not end in a list index"
        raise CorruptValueError(message)
    return int.from_bytes(raw[1:], "big")


def check_key_size(raw: bytes) -> None:
    """Refuse a stored key that is too long.

    Raises:
        KeyTooLargeError: It has more than 65,535 bytes.
    """
    if len(raw) > KEY_BYTES_MAX:
        message = f"a key with its namespace and map key takes {len(raw)} bytes; {KEY_BYTES_MAX} are allowed"
        raise KeyTooLargeError(message)


class KeyBatch:
    """The stored keys of a batch of rows, encoded once and used with any number of states.

    Made by `KeyedStateBackend.keys`. Batch operations work on `distinct`, the different keys in ascending order:
    RocksDB reads and writes sorted keys several times as fast.
    """

    __slots__ = ("_column", "_distinct", "_first_rows", "_groups", "_order", "_starts")

    def __init__(self, column: EncodedColumn) -> None:
        if len(column):
            longest = int((column.offsets[1:] - column.offsets[:-1]).max())
            if longest > KEY_BYTES_MAX:
                message = f"a key with its namespace and map key takes {longest} bytes; {KEY_BYTES_MAX} are allowed"
                raise KeyTooLargeError(message)
        self._column = column
        self._distinct: StoredKeys | None = None

    @classmethod
    def encode(cls, key_groups: npt.NDArray[np.integer[Any]], key: EncodedColumn) -> KeyBatch:
        """From each row's key group and encoded key."""
        groups = np.ascontiguousarray(key_groups, ">u2").view(np.uint8).reshape(-1, KEY_GROUP_BYTES)
        return cls(join_columns([EncodedColumn.fixed(groups), key]))

    def __len__(self) -> int:
        return len(self._column)

    def extended(self, part: EncodedColumn) -> KeyBatch:
        """The stored keys with one more part each."""
        return KeyBatch(join_columns([self._column, part]))

    def head(self, rows: int) -> KeyBatch:
        """Those of the first rows."""
        offsets = self._column.offsets[: rows + 1]
        return KeyBatch(EncodedColumn(self._column.data[: offsets[-1]], offsets, self._column.width))

    def rows(self) -> list[bytes]:
        """The stored key of each row, in the order of rows; if they are sorted already, the very objects of `distinct`."""
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
        """For each distinct key the first row that has it."""
        self.distinct  # noqa: B018 (sorts)
        return self._first_rows

    @property
    def last_rows(self) -> npt.NDArray[np.intp]:
        """For each distinct key the last row that has it."""
        self.distinct  # noqa: B018 (sorts)
        ends = np.append(self._starts, len(self._order))[1:] - 1
        last: npt.NDArray[np.intp] = self._order[ends]
        return last

    @property
    def groups(self) -> npt.NDArray[np.intp]:
        """For each row the position of its key in `distinct`."""
        self.distinct  # noqa: B018 (sorts)
        return self._groups

    def _sort(self) -> None:
        if self._column.width:
            matrix = self._column.matrix()
            self._order, first = sort_rows(matrix)
            self._distinct = StoredKeys.of_rows(matrix[self._order[first]])
        else:
            array = self._column.arrow()
            indices = pc.array_sort_indices(array)  # stable
            ordered = array.take(indices)
            self._order = fixed_values(indices).astype(np.intp)
            first = np.ones(len(ordered), np.bool_)
            first[1:] = fixed_values(pc.not_equal(ordered[1:], ordered[:-1]))
            self._distinct = StoredKeys(ordered.filter(column_over(first)).to_pylist())
        self._starts = np.flatnonzero(first)
        self._first_rows = self._order[self._starts]
        self._groups = np.empty(len(first), np.intp)
        self._groups[self._order] = np.cumsum(first) - 1


def sort_rows(matrix: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """The stable order of a matrix's rows as byte strings, and which rows, in that order, differ from the one before.

    Rows are sorted by the first eight of the bytes in which any two differ, by an unstable sort that is several times as fast as
    a stable one; only what is equal in these is then sorted by the rest.
    """
    first = np.ones(len(matrix), np.bool_)
    if not len(matrix):
        return np.empty(0, np.intp), first
    words = _words(matrix[:, (matrix != matrix[0]).any(axis=0)])
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
    """The rows' bytes as numbers that order as they do, eight bytes each; one at least."""
    rows, width = matrix.shape
    count = max(1, -(-width // 8))
    padded = np.zeros((rows, count * 8), np.uint8)
    padded[:, :width] = matrix
    numbers = padded.view(">u8")
    return [numbers[:, word].astype(np.uint64) for word in range(count)]
