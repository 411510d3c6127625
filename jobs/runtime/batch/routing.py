"""The subtask that a row belongs to, as Spark columns.

They agree with `keyscale.state.keys.hashing` and `keyscale.state.keys.key_groups` on every key. In the `spark` form
all of it is generated JVM code: no row passes through Python before the shuffle. The `java` form hashes in an Arrow
UDF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.types import IntegerType

from keyscale.state.doors.values import HashId, hash_codes

from ...operators.operator_contract import KEY_GROUP_COLUMN
from ...spark_internals.affinity import SUBTASK_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from keyscale.state.doors.values import KeyGroupRanges

_INT_MAX = 2**31 - 1
_MASK = 0xFFFFFFFF
_SPARK_SEED = 42


@dataclass(frozen=True, slots=True)
class Routing:
    """The columns that say where a row goes.

    They are created once per run: creating them takes longer than planning a batch.
    """

    key_group: Column
    subtask: Column

    @classmethod
    def of(cls, key_columns: tuple[str, ...], *, ranges: KeyGroupRanges, hash_id: HashId) -> Routing:
        keys = [F.col("`" + name.replace("`", "``") + "`") for name in key_columns]
        code = F.hash(*keys) if hash_id is HashId.SPARK else _java_hash(keys)
        return cls(
            key_group=key_group_of(code, ranges.max_parallelism),
            subtask=subtask_of(F.col(KEY_GROUP_COLUMN), ranges),
        )

    def mark(self, frame: DataFrame) -> DataFrame:
        """Adds `__key_group` and `__subtask` to every row."""
        return frame.withColumn(KEY_GROUP_COLUMN, self.key_group).withColumn(SUBTASK_COLUMN, self.subtask)


def key_group_of(code: Column, max_parallelism: int) -> Column:
    """Returns the key group of a hash code: Flink's `murmurHash(code) % max_parallelism`."""
    # Flink takes the absolute value, and 0 for the smallest int, which has no absolute value. The absolute value as a
    # long, without its 32nd bit, is the same.
    absolute = F.abs(murmur_hash_of(code).cast("long")).bitwiseAND(F.lit(_INT_MAX))
    return (absolute % F.lit(max_parallelism)).cast("int")


def subtask_of(key_group: Column, ranges: KeyGroupRanges) -> Column:
    """Returns the subtask that owns a key group."""
    if ranges.is_by_count:
        subtask = F.floor(key_group.cast("long") * F.lit(len(ranges)) / F.lit(ranges.max_parallelism)).cast("int")
    else:
        # One literal, which Spark folds to an array; a literal for each element would be a call to the JVM for each.
        owners = ",".join(str(subtask) for subtask, owned in enumerate(ranges) for _ in owned)
        subtask = F.get(F.split(F.lit(owners), ",").cast("array<int>"), key_group)
    # Never null. Saying so avoids a filter before the join, which would hash every key a second time.
    return F.coalesce(subtask, F.lit(0))


def murmur_hash_of(code: Column) -> Column:
    """Returns the Murmur3 hash of an int with seed 0.

    Flink then makes the hash non-negative.

    Spark has only `hash(...)`, with seed 42. But the hash of one column is the seed of the next column (undocumented),
    so a constant first column with hash 0 makes it `hashInt(code, seed 0)`, as in Flink.
    """
    return F.hash(F.lit(_preimage_of_zero(_SPARK_SEED)), code)


def _preimage_of_zero(seed: int) -> int:
    """Returns the int that Murmur3 x86 32-bit maps to 0 with `seed`.

    It undoes every step of the hash.

    The final mix of a 4-byte input is h ^= 4, fmix(h). fmix maps only 0 to 0, so h must be 4 before it.
    """
    mixed = (4 - 0xE6546B64) * pow(5, -1, 2**32) & _MASK
    scrambled = _rotate_left(mixed, 32 - 13) ^ seed
    word = _rotate_left(scrambled * pow(0x1B873593, -1, 2**32) & _MASK, 32 - 15) * pow(0xCC9E2D51, -1, 2**32) & _MASK
    return word - 2**32 if word >= 2**31 else word


def _rotate_left(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK


def _java_hash(keys: list[Column]) -> Column:
    def code(*columns: pa.Array) -> pa.Array:
        return pa.array(hash_codes(list(columns), HashId.JAVA), pa.int32())

    hashed: Column = F.arrow_udf(code, returnType=IntegerType())(*keys)  # type: ignore[attr-defined]  # not in the stub
    return hashed
