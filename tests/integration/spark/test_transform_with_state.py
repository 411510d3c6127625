"""A StatefulProcessor gives batch for batch what Spark's own transformWithState gives; its state schemas are read as Spark reads them.

Spark's own needs protobuf, which is none of our requirements: the first test runs where `python -m bench` has put it on the path.
"""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.types import DataType

from jobs.testing import OperatorHarness
from jobs.transform_with_state import RecordForm, TimeMode, TransformWithState
from jobs.transform_with_state.ddl import parse_columns
from tests.support.processors import CountWords, CountWordsInPandas, History, Reminders, RunningMaximum

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

pytestmark = pytest.mark.spark

INPUT = pa.schema([("id", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
OUTPUT = {"id": "string", "what": "string", "number": "bigint"}
BATCHES = 4
BOUND_MS = 50
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def batches() -> list[list[tuple[str, int, int]]]:
    chance = random.Random(20_261_121)
    return [
        [
            (chance.choice("abcd"), 1000 + number * 60 + chance.randrange(-80, 80), chance.randrange(-9, 10))
            for _ in range(9)
        ]
        for number in range(BATCHES)
    ]


def by_key(rows: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(tuple(row))
    return found


def of_spark(spark: SparkSession, home: Path, processor: StatefulProcessor, mode: str) -> list[dict[str, list[Any]]]:
    """What Spark's own operator puts out, batch by batch, up to the last one with input."""
    (home / "in").mkdir()
    for number, records in enumerate(batches()):
        file = home / "in" / f"{number}.json"
        file.write_text("".join(json.dumps(dict(zip(INPUT.names, record, strict=True))) + "\n" for record in records))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
    source = spark.readStream.schema("id string, at bigint, amount bigint").option("maxFilesPerTrigger", 1)
    frame = source.json(str(home / "in"))
    if mode == "EventTime":
        frame = frame.withColumn("time", F.timestamp_millis("at")).withWatermark("time", f"{BOUND_MS} milliseconds")
    schema = ", ".join(f"{name} {kind}" for name, kind in OUTPUT.items())
    keyed = frame.groupBy("id")
    run = keyed.transformWithStateInPandas if isinstance(processor, CountWordsInPandas) else keyed.transformWithState
    outputs: list[dict[str, list[Any]]] = []

    def collect(batch: DataFrame, number: int) -> None:  # noqa: ARG001 - foreachBatch's
        outputs.append(by_key(batch.collect()))

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        writer = run(processor, schema, "Update", mode).writeStream.outputMode("update").foreachBatch(collect)
        query = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    return outputs


def of_ours(processor: StatefulProcessor, mode: str) -> list[dict[str, list[Any]]]:
    form = RecordForm.PANDAS if isinstance(processor, CountWordsInPandas) else RecordForm.ROWS
    tested = OperatorHarness(
        TransformWithState(processor, TimeMode.of(mode), form),
        input=INPUT,
        key=["id"],
        output=OUTPUT,
        timestamp="at" if mode == "EventTime" else None,
        parallelism=2,
    )
    outputs, latest_ms = [], None
    for records in batches():
        # As a job does it: a batch's timers fire at the watermark of the batches before it.
        watermark_ms = None if latest_ms is None else latest_ms - BOUND_MS - 1
        tested._run(records, watermark_ms)
        outputs.append(by_key(tested.take_output()))
        latest_ms = max([latest_ms or 0, *(at for _, at, _ in records)])
        tested = tested.restored(tested.snapshot(), parallelism=3)
    return outputs


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (CountWords, "None"),
        (CountWordsInPandas, "None"),
        (RunningMaximum, "None"),
        (History, "None"),
        (Reminders, "EventTime"),
    ],
)
def test_a_processor_gives_batch_for_batch_what_sparks_own_operator_gives(
    spark: SparkSession, tmp_path: Path, kind: type[StatefulProcessor], mode: str
) -> None:
    pytest.importorskip("google.protobuf", reason="Spark's own transformWithState needs protobuf")
    theirs = of_spark(spark, tmp_path, kind(), mode)
    assert any(theirs)
    assert of_ours(kind(), mode) == theirs


@pytest.mark.parametrize(
    "ddl",
    [
        "n int",
        "`a b` decimal(12,2) NOT NULL COMMENT 'a, b int', c array<struct<x: int, y: map<string, date>>>, d DEC",
        "a TINYINT, b smallint, c Integer, d LONG, e float, f DOUBLE, g boolean, h binary, i timestamp, j timestamp_ntz",
        "m map<struct<a:int,b:string NOT NULL>,array<array<decimal(38, 18)>>>, value: string",
        "a real, b short, c byte, d numeric(5), `tick``ed` string",
    ],
)
def test_a_states_ddl_string_is_read_as_spark_reads_it(spark: SparkSession, ddl: str) -> None:  # noqa: ARG001 - Spark's parser is in the JVM
    theirs = DataType.fromDDL(ddl)
    # A comment is in a field's metadata, and means nothing to state.
    assert [(each.name, each.dataType, each.nullable) for each in parse_columns(ddl)] == [
        (each.name, each.dataType, each.nullable) for each in theirs
    ]
