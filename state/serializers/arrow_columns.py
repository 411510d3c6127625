"""Conversion between Arrow columns and NumPy arrays over the same buffers.

Arrow's own functions, `to_numpy` and `pa.array`, import pandas at first use, which costs every Python worker 0.5 to 2
seconds and 50 MB.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import SerializationError, UnsupportedTypeError

if TYPE_CHECKING:
    import numpy.typing as npt


_WIDE = Context(prec=80, rounding=ROUND_HALF_UP)


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Returns True per non-null row; None if all are non-null."""
    if array.null_count == 0:
        return None
    return fixed_values(array.is_valid())


def fixed_values(array: pa.Array) -> npt.NDArray[Any]:
    """Returns the values of a column of fixed width.

    Values of null rows are undefined. Timestamps are int64 microseconds since the epoch, rounded down, dates int32 days
    since the epoch, decimals of up to 18 digits their unscaled int64.

    Raises:
        UnsupportedTypeError: The column has another type.
    """
    of_type = array.type
    types = pa.types
    if types.is_boolean(of_type):
        return _buffer(array.cast(pa.uint8()), np.bool_)  # bytes of 0 and 1
    if types.is_timestamp(of_type):
        return _microseconds(array)
    if types.is_date64(of_type):
        return _buffer(array.cast(pa.date32()), np.int32)
    if types.is_date32(of_type):
        return _buffer(array, np.int32)
    if types.is_decimal(of_type):
        if of_type.precision > 18 or of_type.bit_width != 128:
            raise UnsupportedTypeError(f"{of_type} does not fit 64 bits")
        _, buffer = array.buffers()
        words = np.frombuffer(buffer, np.int64) if buffer is not None else np.empty(0, np.int64)
        return np.ascontiguousarray(words[2 * array.offset : 2 * (array.offset + len(array)) : 2])
    if types.is_integer(of_type) or types.is_floating(of_type):
        return _buffer(array, of_type.to_pandas_dtype())
    raise UnsupportedTypeError(f"{of_type} does not have a fixed width")


def _microseconds(array: pa.Array) -> npt.NDArray[Any]:
    if array.type.unit != "ns":
        return _buffer(array.cast(pa.timestamp("us", array.type.tz), safe=False), np.int64)
    microseconds: npt.NDArray[Any] = _buffer(array, np.int64) // 1000  # Arrow's own cast rounds towards zero
    return microseconds


def canonical_floats(array: pa.Array) -> npt.NDArray[Any]:
    """Returns floats with one bit pattern for NaN, and without -0.0.

    The values of null rows are undefined.
    """
    floats = fixed_values(array)
    with np.errstate(invalid="ignore"):  # arithmetic with a signalling NaN warns
        canonical: npt.NDArray[Any] = np.where(
            np.isnan(floats), floats.dtype.type(np.nan), floats + floats.dtype.type(0.0)
        )
    return canonical


def _buffer(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    _, buffer = array.buffers()
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, offset=0)[array.offset : array.offset + len(array)]


def column_over(values: npt.NDArray[Any]) -> pa.Array:
    """Returns booleans or numbers as an Arrow column without nulls."""
    held = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(held)])


def variable_bytes(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Returns the offsets and data of a string or binary column.

    There is one more offset than rows; null rows are empty.
    """
    of_type = array.type
    types = pa.types
    if types.is_fixed_size_binary(of_type):
        array = array.cast(pa.binary())
        of_type = array.type
    if array.null_count:  # in Arrow null rows may have bytes, which must not get into a hash or a key
        array = array.fill_null("" if types.is_string(of_type) or types.is_large_string(of_type) else b"")
    wide = types.is_large_string(of_type) or types.is_large_binary(of_type)
    _, offset_buffer, data_buffer = array.buffers()
    dtype = np.int64 if wide else np.int32
    if offset_buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return offsets, data


def decimal_unscaled(value: Any, of_type: pa.DataType) -> int:
    """Returns a decimal's unscaled integer at its type's scale.

    It is rounded half up as in Spark.

    Raises:
        SerializationError: The value has more digits than the type allows, or is not a finite decimal.
    """
    if not isinstance(value, Decimal) or not value.is_finite():
        raise SerializationError(f"a {type(value).__name__} is not a finite decimal for {of_type}")
    unscaled = int(value.scaleb(of_type.scale, _WIDE).to_integral_value(ROUND_HALF_UP, _WIDE))
    if abs(unscaled) >= 10**of_type.precision:
        raise SerializationError(f"a decimal has more digits than {of_type} allows")
    return unscaled
