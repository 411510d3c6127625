"""Spark and Python map every key to the same key group, or a record would meet another key's state."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.jobs.runtime.batch.routing import Routing, murmur_hash_of, subtask_of
from keyscale.state.keys.hashing import HashId, hash_code, hash_codes
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import assign_to_key_group, assign_to_key_groups, murmur_hash
from keyscale.state.keys.key_hash import key_hashes
from keyscale.state.serializers.key_serializer import KeySerializer
from tests.support.spark.spark_plans import physical_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

ROWS = 4000
SEED = 20_261_121
MAX_PARALLELISM = 128
RANGES = KeyGroupRanges(MAX_PARALLELISM, (0, 9, 100))
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def any_text(random_: random.Random) -> str:
    alphabets = ["abc", "äöüß€", "日本語", "😀🇩🇪\u200d", "\0\x7f\u0301", "zZ09-_/"]
    return "".join(random_.choice(random_.choice(alphabets)) for _ in range(random_.randrange(0, 40)))


def integers(bits: int) -> Callable[[random.Random], int]:
    special = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    return lambda random_: random_.choice([*special, random_.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))])


def any_float(random_: random.Random) -> float:
    special = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -1.5]
    return random_.choice([*special, random_.gauss(0, 1e3), float(random_.randrange(-(10**6), 10**6))])


def decimals(digits: int, scale: int) -> Callable[[random.Random], decimal.Decimal]:
    def one(random_: random.Random) -> decimal.Decimal:
        unscaled = random_.randrange(-(10 ** random_.randrange(1, digits + 1)) + 1, 10**digits)
        return decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=40))

    return one


def any_instant(random_: random.Random) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=random_.randrange(-(10**16), 10**16))


ATOMIC: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "a_bool": (pa.bool_(), lambda random_: random_.random() < 0.5),
    "a_byte": (pa.int8(), integers(8)),
    "a_short": (pa.int16(), integers(16)),
    "an_int": (pa.int32(), integers(32)),
    "a_long": (pa.int64(), integers(64)),
    "a_float": (pa.float32(), any_float),
    "a_double": (pa.float64(), any_float),
    "a_small_decimal": (pa.decimal128(12, 3), decimals(12, 3)),
    "a_large_decimal": (pa.decimal128(38, 10), decimals(38, 10)),
    "a_string": (pa.string(), any_text),
    "bytes": (pa.binary(), lambda random_: random_.randbytes(random_.randrange(0, 30))),
    "a_date": (pa.date32(), lambda random_: any_instant(random_).date()),
    "an_instant": (pa.timestamp("us", "UTC"), any_instant),
    "a_local_time": (pa.timestamp("us"), lambda random_: any_instant(random_).replace(tzinfo=None)),
    "nothing": (pa.int32(), lambda _: None),
}
NESTED: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "an_array": (
        pa.list_(pa.string()),
        lambda random_: [random_.choice([None, any_text(random_)]) for _ in range(random_.randrange(0, 4))],
    ),
    "a_struct": (
        pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())]),
        lambda random_: {"x": random_.choice([None, random_.randrange(10)]), "y": any_text(random_)},
    ),
}
KEYS = [
    *((name,) for name in (*ATOMIC, *NESTED)),
    ("a_string", "an_int"),
    ("nothing", "a_double", "a_bool"),
    ("a_struct", "an_array", "a_large_decimal"),
]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    random_ = random.Random(SEED)
    columns = {
        name: pa.array([None if random_.random() < 0.05 else make(random_) for _ in range(ROWS)], kind)
        for name, (kind, make) in {**ATOMIC, **NESTED}.items()
    }
    return spark.createDataFrame(pa.table(columns)).repartition(2).cache()


def routed(frame: DataFrame, key: tuple[str, ...], hash_id: HashId) -> pa.Table:
    marked = Routing.of(key, ranges=RANGES, hash_id=hash_id).mark(frame)
    return marked.select(*key, "__key_group", "__subtask").toArrow()


@pytest.mark.parametrize("hash_id", HashId)
def test_spark_and_python_agree_on_the_key_group_of_every_key(frame: DataFrame, hash_id: HashId) -> None:
    keys = [key for key in KEYS if hash_id is HashId.SPARK or not set(key) & set(NESTED)]
    marked = frame
    for key in keys:  # all of them in one job
        routing = Routing.of(key, ranges=RANGES, hash_id=hash_id)
        marked = routing.mark(marked).withColumnRenamed("__key_group", ",".join(key) + "=").drop("__subtask")
    rows = marked.toArrow()
    assert rows.num_rows == ROWS
    for key in keys:
        codes = hash_codes([rows.column(name) for name in key], hash_id)
        by_spark = rows.column(",".join(key) + "=").to_pylist()
        assert by_spark == assign_to_key_groups(codes, MAX_PARALLELISM).tolist(), key


def test_the_scalar_form_agrees_with_spark_on_keys_of_several_columns(frame: DataFrame) -> None:
    key = ("a_string", "a_long", "a_double", "a_small_decimal", "an_instant")
    rows = routed(frame.limit(500), key, HashId.SPARK)
    types = tuple(rows.schema.field(name).type for name in key)
    for *values, key_group, subtask in zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True):
        assert assign_to_key_group(tuple(values), MAX_PARALLELISM, types=types) == key_group
        assert RANGES.subtask_of(key_group) == subtask


def test_murmur_hash_is_flinks_on_the_ends_of_the_range_and_between(spark: SparkSession) -> None:
    random_ = random.Random(SEED)
    codes = [0, 1, -1, 42, 2**31 - 1, -(2**31), *(random_.randrange(-(2**31), 2**31) for _ in range(5000))]
    column = spark.createDataFrame([(code,) for code in codes], "code int").select(
        "code", murmur_hash_of(F.col("code"))
    )
    for code, scrambled in column.collect():
        assert (0 if scrambled == -(2**31) else abs(scrambled)) == murmur_hash(code)


def test_the_code_whose_murmur_hash_has_no_absolute_value_has_key_group_zero(spark: SparkSession) -> None:
    code = preimage_of_the_smallest_int()
    assert murmur_hash(code) == 0
    rows = routed(spark.createDataFrame([(code,)], "code int").selectExpr("code as k"), ("k",), HashId.JAVA)
    assert hash_code((code,), (pa.int32(),), HashId.JAVA) == code
    assert rows.column("__key_group").to_pylist() == [0]


def test_a_row_goes_to_the_subtask_that_owns_its_key_group_at_any_parallelism(spark: SparkSession) -> None:
    by_count = [(1, 1), (128, 128), (128, 5), (32768, 7), (1000, 999)]
    given = [KeyGroupRanges.of_count(*each) for each in by_count]
    given += [KeyGroupRanges(4096, (0, 1, 2, 4095)), KeyGroupRanges(128, (0, 120, 121))]
    for ranges in given:
        groups = spark.range(ranges.max_parallelism).select(F.col("id").cast("int").alias("group"))
        rows = groups.select("group", subtask_of(F.col("group"), ranges).alias("subtask")).collect()
        assert all(row["subtask"] == ranges.subtask_of(row["group"]) for row in rows)


def test_no_python_runs_before_the_shuffle_in_the_spark_form(frame: DataFrame) -> None:
    marked = Routing.of(("a_string",), ranges=KeyGroupRanges.of_count(128, 2), hash_id=HashId.SPARK).mark(frame)
    plan = physical_plan(marked)
    assert "Python" not in plan
    assert "ArrowEval" not in plan


def preimage_of_the_smallest_int() -> int:
    """Returns the code that Flink's murmur maps to -2**31, by undoing every step."""
    mask = 0xFFFFFFFF
    word = 2**31
    word ^= word >> 16
    word = word * pow(0xC2B2AE35, -1, 2**32) & mask
    word ^= word >> 13 ^ word >> 26
    word = word * pow(0x85EBCA6B, -1, 2**32) & mask
    word ^= word >> 16
    word = ((word ^ 4) - 0xE6546B64) * pow(5, -1, 2**32) & mask
    word = (word >> 13 | word << 19) & mask
    word = word * pow(0x1B873593, -1, 2**32) & mask
    word = (word >> 15 | word << 17) & mask
    code = word * pow(0xCC9E2D51, -1, 2**32) & mask
    return code - 2**32 if code >= 2**31 else code


def test_the_hash_that_stands_for_a_key_is_sparks_own_of_the_keys_stored_form(spark: SparkSession) -> None:
    random_ = random.Random(SEED)
    texts = [any_text(random_) * random_.randrange(3) for _ in range(500)]
    serializer = KeySerializer(pa.schema([("key", pa.string())]))
    frame = spark.createDataFrame([(bytearray(serializer.encode((text,))),) for text in texts], "stored binary")
    by_spark = [row[0] for row in frame.select(F.xxhash64("stored")).collect()]
    assert key_hashes([pa.array(texts)]).view("int64").tolist() == by_spark
