"""The stored form of whole key columns, computed with NumPy.

The bytes are the same as in `key_codecs`.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrow_columns import (
    canonical_floats,
    column_over,
    fixed_values,
    valid_mask,
    variable_bytes,
)
from .key_codecs import PRESENT, UUID_TEXT_LENGTH, key_codec_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_DASHES = np.array([8, 13, 18, 23])
_HEX_PLACES = np.array([place for place in range(UUID_TEXT_LENGTH) if place not in (8, 13, 18, 23)])


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """One byte string per row: `data[offsets[i] : offsets[i + 1]]`.

    Attributes:
        data: The bytes of all rows.
        bounds: The offsets; None: they follow from the width, and computing them would take as long as encoding.
        width: The common length of all rows, or None.
    """

    data: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.int64] | None
    width: int | None

    def __len__(self) -> int:
        return len(self.data) // (self.width or 1) if self.bounds is None else len(self.bounds) - 1

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The start of each row, and the end of the last row."""
        if self.bounds is None:
            return np.arange(len(self) + 1, dtype=np.int64) * (self.width or 1)
        return self.bounds

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The length of each row."""
        offsets = self.offsets
        return offsets[1:] - offsets[:-1]

    @property
    def longest(self) -> int:
        """The length of the longest row; 0 without rows."""
        return self.width or int(self.lengths.max(initial=0))

    @classmethod
    def fixed(cls, matrix: npt.NDArray[np.uint8]) -> EncodedColumn:
        """Returns a column of the rows of a matrix as byte strings."""
        rows, width = matrix.shape
        return cls(np.ascontiguousarray(matrix).reshape(-1), None if width else np.zeros(rows + 1, np.int64), width)

    @classmethod
    def of(cls, items: Sequence[bytes]) -> EncodedColumn:
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        return cls(np.frombuffer(b"".join(items), np.uint8), _offsets(lengths), None)

    @classmethod
    def over(cls, array: pa.Array) -> EncodedColumn:
        """Returns the rows of an Arrow array of strings or bytes.

        Null rows are empty.
        """
        if pa.types.is_fixed_size_binary(array.type) and array.type.byte_width and not array.null_count:
            width, buffer = array.type.byte_width, array.buffers()[1]
            data = np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
            return cls(data[array.offset * width : (array.offset + len(array)) * width], None, width)
        offsets, data = variable_bytes(array)
        return cls(data[offsets[0] : offsets[-1]], offsets - offsets[0], None)

    @classmethod
    def concatenated(cls, columns: Sequence[EncodedColumn]) -> EncodedColumn:
        """Returns the rows of several columns, in order."""
        data = np.concatenate([np.empty(0, np.uint8), *[each.data for each in columns]])
        widths = {each.width for each in columns}
        width = widths.pop() if len(widths) == 1 else None
        if width:
            return cls(data, None, width)
        lengths = [each.lengths for each in columns]
        return cls(data, _offsets(np.concatenate([np.empty(0, np.int64), *lengths])), None)

    def with_width(self) -> EncodedColumn:
        """Returns the column with its `width`, if all rows have one length."""
        lengths = self.lengths
        same = len(lengths) > 0 and bool((lengths == lengths[0]).all())
        return EncodedColumn(self.data, self.bounds, int(lengths[0])) if same else self

    def part(self, first: int, end: int) -> EncodedColumn:
        """Returns the rows from `first` to before `end`, over the same memory."""
        if self.bounds is None:
            width = self.width or 1
            return EncodedColumn(self.data[first * width : end * width], None, self.width)
        bounds = self.bounds[first : end + 1]
        data = self.data[bounds[0] : bounds[-1]]
        return EncodedColumn(data, bounds - bounds[0] if first else bounds, self.width)

    def take(self, rows: npt.NDArray[np.intp]) -> EncodedColumn:
        """Returns some rows, in the given order."""
        if self.width:  # `take` of whole rows is several times as fast as rows of a matrix
            data = self.data.view(f"V{self.width}").take(rows).view(np.uint8)
            return EncodedColumn(data, None, self.width)
        return EncodedColumn.over(self.arrow().take(column_over(rows)))

    def matrix(self) -> npt.NDArray[np.uint8]:
        """Returns the rows of a column with a `width` as a matrix."""
        return self.data.reshape(len(self), self.width or 0)

    def arrow(self) -> pa.LargeBinaryArray:
        """Returns the rows as an Arrow array over the same memory."""
        offsets, data = (pa.py_buffer(np.ascontiguousarray(each)) for each in (self.offsets, self.data))
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), [None, offsets, data])

    def fixed_arrow(self, width: int) -> pa.FixedSizeBinaryArray:
        """Returns rows of one width as an Arrow array, without copying."""
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(self), [None, pa.py_buffer(np.ascontiguousarray(self.data))]
        )

    def to_list(self) -> list[bytes]:
        if self.width:
            return self.data.view(f"V{self.width}").tolist()  # type: ignore[no-any-return]  # void items are bytes
        return self.arrow().to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


# A text's first and last byte, the separator between joined parts, and null. `pa.scalar` would import pandas.
_TEXT, _END, _NOTHING, _NULL = EncodedColumn.of([b"\2", b"\0", b"", b"\0"]).arrow()


def encode_column(array: pa.Array) -> EncodedColumn:
    """Returns the stored form of one key column.

    Raises:
        UnsupportedTypeError: A key cannot have this type.
        SerializationError: A value does not have the type.
    """
    of_type = array.type
    types = pa.types
    codec = key_codec_for(of_type)
    valid = valid_mask(array)
    if types.is_string(of_type) or types.is_large_string(of_type):
        return _encode_strings(array, valid)
    ordered = _ordered_bits(array)
    if ordered is None:
        return EncodedColumn.of([codec.encode(value) for value in array.to_pylist()])
    matrix = np.empty((len(array), 1 + ordered.dtype.itemsize), np.uint8)
    matrix[:, 0] = 1
    matrix[:, 1:] = (
        ordered.astype(ordered.dtype.newbyteorder(">")).view(np.uint8).reshape(len(array), ordered.dtype.itemsize)
    )
    column = EncodedColumn.fixed(matrix)
    return column if valid is None else _with_nulls(column, valid)


def encoded_keys(columns: Sequence[pa.Array]) -> EncodedColumn:
    """Returns the stored form of each row's key.

    Raises:
        UnsupportedTypeError: A key cannot have a column's type.
        SerializationError: A value does not fit its type.
    """
    return join_columns([encode_column(column) for column in columns])


def byte_matrix(rows: Sequence[bytes | None]) -> npt.NDArray[np.uint8] | None:
    """Returns byte strings of one length as the rows of a matrix.

    Returns:
        The matrix; None if a row is None or empty, or if lengths differ.
    """
    if None in rows:
        return None
    there = cast("Sequence[bytes]", rows)
    lengths = set(map(len, there))
    if len(lengths) != 1 or 0 in lengths:
        return None
    return np.frombuffer(b"".join(there), np.uint8).reshape(len(there), -1)


def decoded_integers(matrix: npt.NDArray[np.uint8], types: Sequence[pa.DataType]) -> list[pa.Array] | None:
    """Returns the columns of encoded keys of integers, a row each.

    It is many times as fast as decoding one key after another.

    Args:
        matrix: The encoded keys.
        types: The types of the columns.

    Returns:
        The columns; None if a column is not of integers, or has a null.
    """
    if not all(map(pa.types.is_integer, types)) or matrix.shape[1] != sum(1 + each.bit_width // 8 for each in types):
        return None
    columns, at = [], 0
    for of_type in types:
        size = of_type.bit_width // 8
        if not (matrix[:, at] == PRESENT[0]).all():
            return None
        bits = np.ascontiguousarray(matrix[:, at + 1 : at + 1 + size]).view(f">u{size}").ravel().astype(f"u{size}")
        if pa.types.is_signed_integer(of_type):
            bits = (bits ^ bits.dtype.type(1 << (of_type.bit_width - 1))).view(f"i{size}")
        columns.append(column_over(bits))
        at += 1 + size
    return columns


def join_columns(columns: Sequence[EncodedColumn]) -> EncodedColumn:
    """Returns the byte strings of several columns concatenated row by row."""
    if len(columns) == 1:
        return columns[0]
    if all(column.width is not None for column in columns):
        return EncodedColumn.fixed(np.hstack([column.matrix() for column in columns]))
    return EncodedColumn.over(pc.binary_join_element_wise(*[column.arrow() for column in columns], _NOTHING))


def _ordered_bits(array: pa.Array) -> npt.NDArray[np.unsignedinteger] | None:
    """Returns unsigned integers in the order of the values, or None.

    None for types without such a form.
    """
    of_type = array.type
    types = pa.types
    if types.is_boolean(of_type):
        return fixed_values(array).astype(np.uint8)
    if types.is_timestamp(of_type):
        values = fixed_values(array.view(pa.int64()))
    elif types.is_integer(of_type) or types.is_date32(of_type):
        values = fixed_values(array)
    elif types.is_float64(of_type) or types.is_float32(of_type):
        floats = canonical_floats(array)
        bits = floats.view(f"u{floats.dtype.itemsize}")
        sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
        ordered: npt.NDArray[np.unsignedinteger] = np.where(bits & sign, ~bits, bits | sign)
        return ordered
    else:
        return None
    unsigned: npt.NDArray[np.unsignedinteger] = values.view(f"u{values.dtype.itemsize}")
    if values.dtype.kind == "u":
        return unsigned
    return unsigned ^ unsigned.dtype.type(1 << (8 * values.dtype.itemsize - 1))


def _with_nulls(column: EncodedColumn, valid: npt.NDArray[np.bool_]) -> EncodedColumn:
    """Returns the column with a zero byte in place of null rows."""
    lengths = np.where(valid, column.lengths, 1)
    offsets = _offsets(lengths)
    data = np.zeros(int(offsets[-1]), np.uint8)
    kept = np.repeat(valid, column.lengths)
    data[np.repeat(valid, lengths)] = column.data[kept]
    return EncodedColumn(data, offsets, None)


def _encode_strings(array: pa.Array, valid: npt.NDArray[np.bool_] | None) -> EncodedColumn:
    offsets, data = variable_bytes(array)
    lengths = offsets[1:] - offsets[:-1]
    is_uuid, sixteen = _canonical_uuids(offsets, data, lengths)
    uuids = EncodedColumn.fixed(np.insert(sixteen, 0, 1, axis=1))
    if len(array) and len(uuids) == len(array):
        return uuids
    used = data[int(offsets[0]) : int(offsets[-1])]
    if (used <= 1).any():
        codec = key_codec_for(array.type)
        return EncodedColumn.of([codec.encode(value) for value in array.to_pylist()])
    stored = pc.binary_join_element_wise(_TEXT, array.cast(pa.large_binary()), _END, _NOTHING)
    if len(uuids):
        stored = pc.replace_with_mask(stored, column_over(is_uuid), uuids.arrow())
    if valid is not None:
        stored = stored.fill_null(_NULL)
    return EncodedColumn.over(stored)


def _canonical_uuids(
    offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    """Returns which rows are canonical UUIDs, and the UUIDs' 16 bytes."""
    found = lengths == UUID_TEXT_LENGTH
    rows = np.flatnonzero(found)
    if not len(rows):
        return found, np.empty((0, 16), np.uint8)
    if len(rows) == len(found):
        text = data[int(offsets[0]) : int(offsets[-1])].reshape(-1, UUID_TEXT_LENGTH)
    else:
        text = data[offsets[rows][:, None] + np.arange(UUID_TEXT_LENGTH)]
    digits = np.take(text, _HEX_PLACES, axis=1)
    is_dash = text[:, _DASHES] == ord("-")
    is_digit = (digits - np.uint8(ord("0")) < 10) | (digits - np.uint8(ord("a")) < 6)  # canonical UUIDs are lower case
    if not (is_dash.all() and is_digit.all()):  # checking row by row takes several times as long
        good = is_dash.all(axis=1) & is_digit.all(axis=1)
        found[rows[~good]] = False
        digits = digits[good]
    return found, np.frombuffer(binascii.unhexlify(digits.data), np.uint8).reshape(-1, 16)
