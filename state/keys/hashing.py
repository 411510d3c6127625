"""Hash codes of keys, in two permanent forms: `spark` and `java`.

`spark` is Spark SQL's `hash()` of the key columns: Murmur3 x86 32-bit, seed 42, chained over the columns; a null column
leaves the hash unchanged. `java` is Java's `hashCode` of the value's natural class. Several columns are combined as in
Flink's Tuple classes, by `31 * hash + hashCode(column)` from the left; a single column has just its own hash code, and
null has 0. The natural classes are Boolean, Byte, Short, Integer, Long, Float, Double, String, BigDecimal, LocalDate
(dates), Instant (timestamps) and byte[] by its content. In both forms -0.0 has the hash of 0.0, because they are the
same key.

Each form has a function for one key and one for whole Arrow columns, with equal results.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import UnsupportedTypeError
from .hashing_java import java_hash, java_hashes
from .hashing_spark import SPARK_SEED, spark_hash, spark_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_NATURAL = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


class HashId(StrEnum):
    """The hash that assigns a job's keys to key groups.

    Every manifest names it.
    """

    SPARK = "spark"
    JAVA = "java"


def hash_code(values: Sequence[Any], types: Sequence[pa.DataType] | None, hash_id: HashId) -> int:
    """Returns the hash code of one key, a signed 32-bit int.

    Args:
        values: The key's columns.
        types: Their Arrow types; None infers them, and takes a Python int as 64-bit.
        hash_id: The form.

    Raises:
        UnsupportedTypeError: A column's type has no hash in this form.
        SerializationError: A value is not of its column's type.
    """
    known = [_natural_type(value) for value in values] if types is None else types
    if hash_id is HashId.JAVA:
        code = 0
        for position, (value, of_type) in enumerate(zip(values, known, strict=True)):
            one = java_hash(value, of_type)
            code = one if position == 0 else 31 * code + one & 0xFFFFFFFF
    else:
        code = SPARK_SEED
        for value, of_type in zip(values, known, strict=True):
            code = spark_hash(value, of_type, code)
    return _signed(code)


def hash_codes(columns: Sequence[pa.Array | pa.ChunkedArray], hash_id: HashId) -> npt.NDArray[np.int32]:
    """Returns the hash codes of many keys, given as Arrow columns.

    Raises:
        UnsupportedTypeError: A column's type has no hash in this form.
    """
    if not columns:
        raise UnsupportedTypeError("a key has at least one column")
    arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    if hash_id is HashId.JAVA:
        codes = java_hashes(arrays[0])
        for array in arrays[1:]:
            codes = codes * np.uint32(31) + java_hashes(array)
    else:
        codes = np.full(len(arrays[0]), SPARK_SEED, np.uint32)
        for array in arrays:
            codes = spark_hashes(array, codes)
    return codes.view(np.int32)


def _natural_type(value: Any) -> pa.DataType:
    """Returns the type of a value without a declared type."""
    return _NATURAL.get(type(value)) or pa.infer_type([value])


def _signed(code: int) -> int:
    return code - 2**32 if code >= 2**31 else code
