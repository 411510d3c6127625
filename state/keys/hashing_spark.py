"""Spark SQL's `hash()` of one value and of Arrow columns.

It is Murmur3 x86 32-bit as in Spark's `Murmur3Hash` and `Murmur3_x86_32.hashUnsafeBytes`, which differs from the
published algorithm in the last 1 to 3 bytes: each is sign-extended and mixed in as a separate int.
"""

from __future__ import annotations

import datetime as dt
import struct
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import SerializationError, UnsupportedTypeError
from ..serializers.arrow_columns import (
    canonical_floats,
    decimal_unscaled,
    fixed_values,
    valid_mask,
    variable_bytes,
)

if TYPE_CHECKING:
    from decimal import Decimal

    import numpy.typing as npt

SPARK_SEED = 42
_MASK = 0xFFFFFFFF
_FEW_ROWS = 8  # up to this number, one row at a time is faster than NumPy calls on tiny arrays
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DATE = dt.date(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)


def spark_hash(value: Any, of_type: pa.DataType, seed: int) -> int:
    """Returns a value's hash chained after `seed`, as an unsigned int."""
    if value is None:
        return seed
    try:
        return _hash_one(value, of_type, seed)
    except (TypeError, ValueError, struct.error, OverflowError, AttributeError, UnicodeEncodeError) as error:
        raise SerializationError(f"a {type(value).__name__} is not a value of type {of_type}") from error


def _hash_one(value: Any, of_type: pa.DataType, seed: int) -> int:  # noqa: C901, PLR0911, PLR0912 (one branch per type)
    types = pa.types
    if types.is_string(of_type) or types.is_large_string(of_type):
        return _hash_bytes(value.encode(), seed)
    if types.is_int64(of_type):
        return _hash_long(value, seed)
    if types.is_boolean(of_type):
        return _hash_int(1 if value else 0, seed)
    if types.is_signed_integer(of_type):
        return _hash_int(value, seed)
    if types.is_binary(of_type) or types.is_large_binary(of_type) or types.is_fixed_size_binary(of_type):
        return _hash_bytes(bytes(value), seed)
    if types.is_float64(of_type):
        number = float(value) + 0.0  # -0.0 becomes 0.0, as in Spark
        return _hash_long(0x7FF8000000000000 if number != number else _double_bits(number), seed)  # noqa: PLR0124 (NaN)
    if types.is_float32(of_type):
        number = float(value) + 0.0
        return _hash_int(0x7FC00000 if number != number else _float_bits(number), seed)  # noqa: PLR0124 (NaN)
    if types.is_date(of_type):
        return _hash_int((value - _EPOCH_DATE).days, seed)
    if types.is_timestamp(of_type):
        return _hash_long(epoch_microseconds(value), seed)
    if types.is_decimal(of_type):
        return _hash_decimal(value, of_type, seed)
    if types.is_struct(of_type):
        for field in of_type:
            item = value[field.name] if isinstance(value, dict) else value[of_type.get_field_index(field.name)]
            seed = spark_hash(item, field.type, seed)
        return seed
    if types.is_list(of_type) or types.is_large_list(of_type):
        for item in value:
            seed = spark_hash(item, of_type.value_type, seed)
        return seed
    raise _unsupported(of_type)


def _hash_decimal(value: Decimal, of_type: pa.DataType, seed: int) -> int:
    unscaled = decimal_unscaled(value, of_type)
    if of_type.precision <= 18:
        return _hash_long(unscaled, seed)
    return _hash_bytes(java_big_integer_bytes(unscaled), seed)


def java_big_integer_bytes(number: int) -> bytes:
    """Returns Java's `BigInteger.toByteArray`: the shortest two's complement, big endian."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def epoch_microseconds(value: dt.datetime) -> int:
    """Returns a datetime's microseconds since the epoch.

    A datetime without a time zone counts as UTC.
    """
    aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // _MICROSECOND


def _double_bits(number: float) -> int:
    return cast("int", struct.unpack("<q", struct.pack("<d", number))[0])


def _float_bits(number: float) -> int:
    return cast("int", struct.unpack("<i", struct.pack("<f", number))[0])


def _mix_k(k: int) -> int:
    k = k * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) & _MASK
    return k * 0x1B873593 & _MASK


def _mix_h(h: int, k: int) -> int:
    h ^= k
    h = (h << 13 | h >> 19) & _MASK
    return h * 5 + 0xE6546B64 & _MASK


def _final(h: int, length: int) -> int:
    h ^= length
    h ^= h >> 16
    h = h * 0x85EBCA6B & _MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def _hash_int(value: int, seed: int) -> int:
    return _final(_mix_h(seed, _mix_k(value & _MASK)), 4)


def _hash_long(value: int, seed: int) -> int:
    h = _mix_h(seed, _mix_k(value & _MASK))
    return _final(_mix_h(h, _mix_k(value >> 32 & _MASK)), 8)


def _hash_bytes(raw: bytes, seed: int) -> int:
    return _final(_mix_bytes(raw, seed), len(raw))


def _mix_bytes(raw: bytes, h: int) -> int:
    aligned = len(raw) & ~3
    for (word,) in struct.iter_unpack("<I", raw[:aligned]):
        h = _mix_h(h, _mix_k(word))
    for byte in raw[aligned:]:
        h = _mix_h(h, _mix_k((byte - 256 if byte > 127 else byte) & _MASK))
    return h


def spark_hashes(array: pa.Array, seeds: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Returns the hash of each row, chained after the row's seed."""
    of_type = array.type
    types = pa.types
    valid = valid_mask(array)
    if types.is_struct(of_type):
        codes = seeds
        for index in range(of_type.num_fields):
            codes = spark_hashes(pc.struct_field(array, [index]), codes)
    elif types.is_list(of_type) or types.is_large_list(of_type):
        codes = _hash_lists(array, seeds)
    elif types.is_string(of_type) or types.is_large_string(of_type) or _is_binary(of_type):
        codes = _hash_bytes_column(array, seeds)
    elif types.is_decimal(of_type) and of_type.precision > 18:
        raw = [None if x is None else java_big_integer_bytes(decimal_unscaled(x, of_type)) for x in array.to_pylist()]
        codes = _hash_bytes_column(pa.array(raw, pa.binary()), seeds)
    else:
        codes = _hash_fixed(array, seeds)
    return codes if valid is None else np.where(valid, codes, seeds)


def _is_binary(of_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(of_type) or pa.types.is_large_binary(of_type) or pa.types.is_fixed_size_binary(of_type)
    )


def _hash_fixed(array: pa.Array, seeds: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    of_type = array.type
    types = pa.types
    if types.is_float64(of_type):
        return _hash_longs(canonical_floats(array).view(np.int64), seeds)
    if types.is_float32(of_type):
        return _hash_ints(canonical_floats(array).view(np.uint32), seeds)
    if types.is_int64(of_type) or types.is_timestamp(of_type) or types.is_decimal(of_type):
        return _hash_longs(fixed_values(array), seeds)
    if types.is_boolean(of_type) or types.is_signed_integer(of_type) or types.is_date(of_type):
        return _hash_ints(fixed_values(array).astype(np.int32).view(np.uint32), seeds)
    raise _unsupported(of_type)


def _hash_lists(array: pa.Array, seeds: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hashes item i of all rows with one, for each i.

    It takes as many rounds as the longest list has items.
    """
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = array.offsets.to_numpy().astype(np.int64)[:-1]
    codes = seeds.copy()
    rows = np.flatnonzero(lengths > 0)
    index = 0
    while len(rows):
        codes[rows] = spark_hashes(array.values.take(pa.array(offsets[rows] + index)), codes[rows])
        index += 1
        rows = rows[lengths[rows] > index]
    return codes


def _mix_ks(k: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    k = k * np.uint32(0xCC9E2D51)
    k = k << np.uint32(15) | k >> np.uint32(17)
    return k * np.uint32(0x1B873593)


def _mix_hs(h: npt.NDArray[np.uint32], k: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    h = h ^ k
    h = h << np.uint32(13) | h >> np.uint32(19)
    return h * np.uint32(5) + np.uint32(0xE6546B64)


def _finals(h: npt.NDArray[np.uint32], lengths: npt.NDArray[np.uint32] | np.uint32) -> npt.NDArray[np.uint32]:
    h = h ^ lengths
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)


def _hash_ints(values: npt.NDArray[np.uint32], seeds: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return _finals(_mix_hs(seeds, _mix_ks(values)), np.uint32(4))


def _hash_longs(values: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    bits = values.view(np.uint64)
    h = _mix_hs(seeds, _mix_ks((bits & np.uint64(_MASK)).astype(np.uint32)))
    return _finals(_mix_hs(h, _mix_ks((bits >> np.uint64(32)).astype(np.uint32))), np.uint32(8))


def _hash_bytes_column(array: pa.Array, seeds: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hashes word i of all rows with one, for each i.

    The last few long rows are hashed one by one.
    """
    offsets, data = variable_bytes(array)
    starts, lengths = offsets[:-1], offsets[1:] - offsets[:-1]
    h = seeds.copy()
    rows = np.flatnonzero(lengths >= 4)
    position = 0
    while len(rows) > _FEW_ROWS:
        at = starts[rows] + position
        word = data[at].astype(np.uint32)
        for byte in range(1, 4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        h[rows] = _mix_hs(h[rows], _mix_ks(word))
        position += 4
        rows = rows[lengths[rows] >= position + 4]
    for row in rows:
        rest = data[starts[row] + position : starts[row] + (lengths[row] & ~3)].tobytes()
        h[row] = _mix_bytes(rest, int(h[row]))
    tails = lengths & 3
    aligned = starts + (lengths & ~3)
    for byte in range(3):
        rows = np.flatnonzero(tails > byte)
        if len(rows):
            extended = data[aligned[rows] + byte].view(np.int8).astype(np.int32).view(np.uint32)
            h[rows] = _mix_hs(h[rows], _mix_ks(extended))
    return _finals(h, lengths.astype(np.uint32))


def _unsupported(of_type: pa.DataType) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"a column of type {of_type} has no spark hash")
