"""Arrow columns as NumPy arrays over their own buffers, and the other way round.

Arrow's own ways, `to_numpy` and `pa.array`, import pandas at first use: half a second to two and 50 MB of every Python worker.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from state.errors import SerializationError, UnsupportedTypeError

if TYPE_CHECKING:
    import numpy.typing as npt

_WIDE = Context(prec=80, rounding=ROUND_HALF_UP)


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where a row is not null; None if no row is null."""
    if array.null_count == 0:
        return None
    return fixed_values(array.is_valid())


def fixed_values(array: pa.Array) -> npt.NDArray[Any]:
    """The values of a column of fixed width; null rows hold anything.

    Timestamps are int64 microseconds and dates int32 days since the epoch, decimals of up to 18 digits int64 unscaled.

    Raises:
        UnsupportedTypeError: The column is of another kind.
    """
    of_type = array.type
    types = pa.types
    if types.is_boolean(of_type):
        return _buffer(array.cast(pa.uint8()), np.bool_)  # which are bytes of 0 and 1
    if types.is_timestamp(of_type):
        array = array.cast(pa.timestamp("us", of_type.tz), safe=False)
        return _buffer(array, np.int64)
    if types.is_date64(of_type):
        return _buffer(array.cast(pa.date32()), np.int32)
    if types.is_date32(of_type):
        return _buffer(array, np.int32)
    if types.is_decimal(of_type):
        if of_type.precision > 18 or of_type.bit_width != 128:
            message = f"{of_type} does not fit 64 bits"
            raise UnsupportedTypeError(message)
        _, buffer = array.buffers()
        words = np.frombuffer(buffer, np.int64) if buffer is not None else np.empty(0, np.int64)
        return np.ascontiguousarray(words[2 * array.offset : 2 * (array.offset + len(array)) : 2])
    if types.is_integer(of_type) or types.is_floating(of_type):
        return _buffer(array, of_type.to_pandas_dtype())
    message = f"{of_type} is not of fixed width"
    raise UnsupportedTypeError(message)


def _buffer(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    _, buffer = array.buffers()
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, offset=0)[array.offset : array.offset + len(array)]


def column_over(values: npt.NDArray[Any]) -> pa.Array:
    """Booleans or numbers as a column without nulls."""
    held = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(held)])


def variable_bytes(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Offsets (one more than rows) and data of a string or binary column; null rows are empty."""
    of_type = array.type
    types = pa.types
    if types.is_fixed_size_binary(of_type):
        array = array.cast(pa.binary())
        of_type = array.type
    if array.null_count:  # Arrow lets null rows have bytes; a hash or a key must not see them
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
    """The unscaled integer of a decimal at its type's scale, rounding half up as Spark does.

    Raises:
        SerializationError: It has more digits than the type holds, or is no number.
    """
    if not isinstance(value, Decimal) or not value.is_finite():
        message = f"a {type(value).__name__} is no finite decimal for {of_type}"
        raise SerializationError(message)
    unscaled = int(value.scaleb(of_type.scale, _WIDE).to_integral_value(ROUND_HALF_UP, _WIDE))
    if abs(unscaled) >= 10**of_type.precision:
        message = f"a decimal has more digits than {of_type} holds"
        raise SerializationError(message)
    return unscaled
