"""Java's `hashCode` of one value and of Arrow columns.

`keyscale.state.keys.hashing` lists the class of each type. One value differs from Java's: -0.0 has the hash of 0.0. The
two are one key here, as in Spark, so they must have the same key group.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import SerializationError, UnsupportedTypeError
from ..serializers.arrow_columns import decimal_unscaled, fixed_values, valid_mask, variable_bytes
from .hashing_spark import epoch_microseconds

if TYPE_CHECKING:
    import datetime as dt

    import numpy.typing as npt

_MASK = 0xFFFFFFFF
_TRUE, _FALSE = 1231, 1237
_DATE_YEAR_MASK = 0xFFFFF800


def java_hash(value: Any, of_type: pa.DataType) -> int:
    """Returns the hash code of one value as an unsigned int."""
    if value is None:
        return 0
    try:
        return _hash_one(value, of_type) & _MASK
    except (TypeError, ValueError, struct.error, OverflowError, AttributeError) as error:
        raise SerializationError(f"a {type(value).__name__} is not a value of type {of_type}") from error


def _hash_one(value: Any, of_type: pa.DataType) -> int:  # noqa: C901, PLR0911 (one branch per type)
    types = pa.types
    if types.is_string(of_type) or types.is_large_string(of_type):
        return _polynomial(struct.unpack(f"<{len(raw) // 2}H", raw) if (raw := value.encode("utf-16-le")) else (), 0)
    if types.is_int64(of_type):
        return _fold_long(value)
    if types.is_boolean(of_type):
        return _TRUE if value else _FALSE
    if types.is_signed_integer(of_type):
        return int(value)
    if types.is_float64(of_type):
        number = float(value) + 0.0  # -0.0 becomes 0.0: they are one key, unlike in Java
        return _fold_long(0x7FF8000000000000 if number != number else _bits("<d", "<q", number))  # noqa: PLR0124 (NaN)
    if types.is_float32(of_type):
        number = float(value) + 0.0
        return 0x7FC00000 if number != number else _bits("<f", "<i", number)  # noqa: PLR0124 (NaN)
    if types.is_date(of_type):
        return _hash_date(value)
    if types.is_timestamp(of_type):
        seconds, micros = divmod(epoch_microseconds(value), 1_000_000)
        return _fold_long(seconds) + 51 * micros * 1000
    if types.is_decimal(of_type):
        return _hash_big_integer(decimal_unscaled(value, of_type)) * 31 + int(of_type.scale)
    if types.is_binary(of_type) or types.is_large_binary(of_type) or types.is_fixed_size_binary(of_type):
        return _polynomial(struct.unpack(f"{len(value)}b", bytes(value)), 1)
    raise UnsupportedTypeError(f"a column of type {of_type} has no java hash")


def _bits(of: str, to: str, number: float) -> int:
    return int(struct.unpack(to, struct.pack(of, number))[0])


def _fold_long(value: int) -> int:
    return (value ^ value >> 32) & _MASK


def _polynomial(items: tuple[int, ...], code: int) -> int:
    for item in items:
        code = 31 * code + item & _MASK
    return code


def _hash_date(value: dt.date) -> int:
    return (value.year & _DATE_YEAR_MASK) ^ ((value.year << 11) + (value.month << 6) + value.day)


def _hash_big_integer(number: int) -> int:
    magnitude = abs(number)
    words = [magnitude >> shift & _MASK for shift in range(32 * ((magnitude.bit_length() + 31) // 32 - 1), -1, -32)]
    code = _polynomial(tuple(words), 0)
    return -code if number < 0 else code


def java_hashes(array: pa.Array) -> npt.NDArray[np.uint32]:
    """Returns the hash code of each row of a column."""
    of_type = array.type
    types = pa.types
    if types.is_string(of_type) or types.is_large_string(of_type):
        codes = _hash_strings(array)
    elif types.is_binary(of_type) or types.is_large_binary(of_type) or types.is_fixed_size_binary(of_type):
        offsets, data = variable_bytes(array)
        codes = _polynomials(offsets, data.view(np.int8).astype(np.int32).view(np.uint32), 1)
    elif types.is_decimal(of_type) or types.is_date(of_type):
        codes = np.array([java_hash(value, of_type) for value in array.to_pylist()], np.uint32)
    else:
        codes = _hash_fixed(array)
    valid = valid_mask(array)
    return codes if valid is None else np.where(valid, codes, np.uint32(0))


def _hash_fixed(array: pa.Array) -> npt.NDArray[np.uint32]:
    of_type = array.type
    types = pa.types
    values = fixed_values(array)
    if types.is_boolean(of_type):
        return np.where(values, np.uint32(_TRUE), np.uint32(_FALSE))
    if types.is_timestamp(of_type):
        seconds, micros = np.divmod(values, 1_000_000)
        return _fold_longs(seconds) + micros.astype(np.uint32) * np.uint32(51_000)
    if types.is_int64(of_type):
        return _fold_longs(values)
    if types.is_signed_integer(of_type):
        return values.astype(np.int32).view(np.uint32)
    if types.is_float64(of_type):
        return _fold_longs((np.where(np.isnan(values), np.float64(np.nan), values) + 0.0).view(np.int64))
    if types.is_float32(of_type):
        return (np.where(np.isnan(values), np.float32(np.nan), values) + np.float32(0.0)).view(np.uint32)
    raise UnsupportedTypeError(f"a column of type {of_type} has no java hash")


def _fold_longs(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    bits = values.view(np.uint64)
    return ((bits ^ bits >> np.uint64(32)) & np.uint64(_MASK)).astype(np.uint32)


def _hash_strings(array: pa.Array) -> npt.NDArray[np.uint32]:
    """Hashes the UTF-16 units of strings.

    Transcodes the whole column at once, and finds row bounds by counting lead bytes.
    """
    offsets, data = variable_bytes(array)
    first, last = int(offsets[0]), int(offsets[-1])
    data, offsets = data[first:last], offsets - first
    if not (data & 0x80).any():
        return _polynomials(offsets, data.astype(np.uint32), 0)
    units = np.frombuffer(data.tobytes().decode().encode("utf-16-le"), np.uint16).astype(np.uint32)
    width = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    ends = np.concatenate(([0], np.cumsum(width)))
    return _polynomials(ends[offsets], units, 0)


def _polynomials(offsets: npt.NDArray[np.int64], items: npt.NDArray[np.uint32], start: int) -> npt.NDArray[np.uint32]:
    """Returns each row's polynomial hash, modulo 2 ** 32.

    It is sum(items[i] * 31 ** (end - 1 - i)) + start * 31 ** length.
    """
    lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max(initial=0))
    powers = np.ones(longest + 1, np.uint32)
    powers[1:] = 31
    np.multiply.accumulate(powers, out=powers)
    codes: npt.NDArray[np.uint32] = powers[lengths] * np.uint32(start)
    rows = np.flatnonzero(lengths)
    if len(rows):
        first, last = int(offsets[0]), int(offsets[-1])
        exponents = np.repeat(offsets[1:], lengths) - 1 - np.arange(first, last)
        codes[rows] += np.add.reduceat(items[first:last] * powers[exponents], offsets[rows] - first)
    return codes
