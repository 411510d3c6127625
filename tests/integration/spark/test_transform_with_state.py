"""A StatefulProcessor emits the same as in Spark's own transformWithState, batch by batch; schemas are parsed alike."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.types import DataType

from keyscale.jobs.transform_with_state.ddl import parse_columns
from keyscale.jobs.transform_with_state.record_form import RecordForm
from keyscale.jobs.transform_with_state.time_mode import TimeMode
from tests.support.spark.own_operator import of_ours, of_spark
from tests.support.spark.processors import CountWords, CountWordsInPandas, History, Reminders, RunningMaximum

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

pytestmark = pytest.mark.real

INPUT = pa.schema(
    [("id", pa.string()), ("at", pa.int64()), ("amount", pa.int64()), ("time", pa.timestamp("us", "UTC"))]
)
OUTPUT = T.StructType().add("id", T.StringType()).add("what", T.StringType()).add("number", T.LongType())
BATCHES = 4


def batches() -> list[pa.Table]:
    chance = random.Random(20_261_121)
    tables = []
    for number in range(BATCHES):
        ids = [chance.choice("abcd") for _ in range(9)]
        times = pa.array([1000 + number * 60 + chance.randrange(-80, 80) for _ in range(9)])
        amounts = [chance.randrange(-9, 10) for _ in range(9)]
        instants = times.cast(pa.timestamp("ms", "UTC")).cast(INPUT.field("time").type)
        tables.append(pa.table([pa.array(ids), times, pa.array(amounts), instants], INPUT))
    return tables


def by_key(rows: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


PROCESSORS: dict[str, tuple[StatefulProcessor, TimeMode]] = {
    "words": (CountWords(), TimeMode.NONE),
    "words in pandas": (CountWordsInPandas(), TimeMode.NONE),
    "running maximum": (RunningMaximum(), TimeMode.NONE),
    "history": (History(), TimeMode.NONE),
    "reminders": (Reminders("EventTime"), TimeMode.EVENT_TIME),
}


@pytest.mark.exhaustive  # test_transform_with_state_alike.py has one processor that does everything
@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_emits_in_every_batch_the_records_of_sparks_own_operator(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    processor, mode = PROCESSORS[name]
    form = RecordForm.PANDAS if isinstance(processor, CountWordsInPandas) else RecordForm.ROWS
    run: dict[str, Any] = {"key": ["id"], "output": OUTPUT, "mode": mode, "form": form, "event_time": "time"}
    theirs = of_spark(spark, tmp_path, processor, batches(), **run)
    assert any(theirs)
    assert [by_key(batch) for batch in of_ours(processor, batches(), **run)] == [by_key(batch) for batch in theirs]


@pytest.mark.parametrize(
    "ddl",
    [
        "n int",
        "`a b` decimal(12,2) NOT NULL COMMENT 'a, b int', c array<struct<x: int, y: map<string, date>>>, d DEC",
        "a TINYINT, b smallint, c Integer, d LONG, e float, f DOUBLE, g boolean, h binary",
        "i timestamp, j timestamp_ntz",
        "m map<struct<a:int,b:string NOT NULL>,array<array<decimal(38, 18)>>>, value: string",
        "a real, b short, c byte, d numeric(5), `tick``ed` string",
    ],
)
def test_the_ddl_string_of_a_state_is_parsed_as_spark_parses_it(spark: SparkSession, ddl: str) -> None:  # noqa: ARG001 - Spark's parser is in the JVM
    theirs = DataType.fromDDL(ddl)
    # A comment is in a field's metadata, which state ignores.
    assert [(each.name, each.dataType, each.nullable) for each in parse_columns(ddl)] == [
        (each.name, each.dataType, each.nullable) for each in theirs
    ]
