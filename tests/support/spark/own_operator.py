"""Runs a processor in Spark's own transformWithState, and in ours without Spark, over the same batches."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from keyscale.jobs.spark_internals.arrow_schemas import arrow_schema_of, spark_schema_of
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.jobs.transform_with_state.initial_state import InitialState
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.jobs.transform_with_state.record_form import RecordForm
from keyscale.jobs.transform_with_state.time_mode import TimeMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

BOUND_MS = 50
"""The bound of the watermark in event time."""

_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def of_spark(
    spark: SparkSession,
    home: Path,
    processor: StatefulProcessor,
    batches: Sequence[pa.Table],
    *,
    key: Sequence[str],
    output: StructType,
    mode: TimeMode,
    form: RecordForm,
    event_time: str = "at",
    initial: pa.Table | None = None,
    settings: Mapping[str, str] | None = None,
) -> list[list[tuple[Any, ...]]]:
    """Returns the records that Spark's operator emits in each batch. The last batch has input, too."""
    inputs = home / "in"
    inputs.mkdir(parents=True)
    for number, records in enumerate(batches):
        file = inputs / f"{number}.parquet"
        pq.write_table(records, file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
    outputs: list[list[tuple[Any, ...]]] = []

    def collect(batch: DataFrame, number: int) -> None:  # noqa: ARG001 - foreachBatch's
        outputs.append([tuple(row) for row in batch.collect()])

    chosen = {**_SETTINGS, **(settings or {})}
    before = {name: spark.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    try:
        source = spark.readStream.schema(spark_schema_of(batches[0].schema)).option("maxFilesPerTrigger", 1)
        frame = source.parquet(str(inputs))
        if mode is TimeMode.EVENT_TIME:
            frame = frame.withWatermark(event_time, f"{BOUND_MS} milliseconds")
        keyed = frame.groupBy(*key)
        run = keyed.transformWithStateInPandas if form is RecordForm.PANDAS else keyed.transformWithState
        begun = None
        if initial is not None:
            begun = spark.createDataFrame(initial, spark_schema_of(initial.schema)).groupBy(*key)
        result = run(processor, output, "Update", mode.value, begun)
        writer = result.writeStream.outputMode("update").foreachBatch(collect)
        query = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
    return outputs


def of_ours(
    processor: StatefulProcessor,
    batches: Sequence[pa.Table],
    *,
    key: Sequence[str],
    output: StructType,
    mode: TimeMode,
    form: RecordForm,
    event_time: str = "at",
    initial: pa.Table | None = None,
) -> list[list[tuple[Any, ...]]]:
    """Returns the records that our operator emits in each batch. Between two batches it is restored and rescaled."""
    schema = batches[0].schema
    begun = None
    if initial is not None:
        begun = InitialState.of(initial, pa.schema([schema.field(name) for name in key]))
    tested = OperatorHarness(
        TransformWithState(processor, mode, form, begun),
        input=schema,
        key=key,
        output=arrow_schema_of(output),
        timestamp=event_time if mode is TimeMode.EVENT_TIME else None,
        parallelism=2,
    )
    outputs, latest_ms = [], None
    for number, records in enumerate(batches):
        if mode is TimeMode.PROCESSING_TIME:
            tested._clock.advance(processing_time_ms=1_700_000_000_000 + 1000 * number)
        # As in a job, a batch's timers fire at the watermark of the batches before it.
        watermark_ms = None if latest_ms is None else latest_ms - BOUND_MS - 1
        tested._run(records.to_pylist(), watermark_ms if mode is TimeMode.EVENT_TIME else None)
        outputs.append([tuple(row) for row in tested.take_output()])
        latest_ms = max(each for each in (latest_ms, _latest_ms(records.column(event_time))) if each is not None)
        tested._info = replace(tested._info, parallelism=3 - number % 2)
        tested._open(tested.snapshot())  # not `restored`, which runs a batch without records
    return outputs


def _latest_ms(times: pa.ChunkedArray) -> int:
    latest: int = pc.max(times.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())).as_py()
    return latest
