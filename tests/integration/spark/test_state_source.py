"""Spark reads the state in a snapshot, by SQL and by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException

from keyscale.state.layout import location_of
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state_io import NewOperator, NewState, NewTimers, StateReader, spark_source, spark_writer
from keyscale.state_io.difference import differences
from keyscale.state_io.verified_state import verify_state
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import DESCRIPTORS, KEYS, KINDS, SAVEPOINT, UID
from tests.support.state.every_kind import KEY_SCHEMA as KEY_SCHEMA_OF_ALL
from tests.support.state.state_job import COUNT, KEY_SCHEMA, StateJob, random_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

LOCATION = f"{(GOLDEN / 'savepoint-v1').as_uri()}/every-kind/savepoints/{SAVEPOINT}/manifest.json"


def test_spark_reads_state_in_parallel_and_a_key_from_one_shard(spark: SparkSession, tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(3)
    job.run_batch(random_batch(1))
    location = location_of(job.store.url, job.checkpoint()[0].path)
    spark_source.register(spark)
    source = spark.read.format("keyscale-state").options(path=location, operator="count", state="count")
    source.load().createOrReplaceTempView("counts")
    rows = spark.sql("select key.id, value, spark_partition_id() part from counts").collect()
    assert {row.id: row.value for row in rows} == job.reference
    assert {row.part for row in rows} == {0, 1, 2}
    key = rows[-1].id
    assert [row.value for row in source.option("key", str(key)).load().collect()] == [job.reference[key]]


def test_spark_writes_a_savepoint_of_dataframes_in_a_task_per_subtask(spark: SparkSession, tmp_path: Path) -> None:
    counts = spark.createDataFrame(list(enumerate(range(100, 200))), "id long, value int")
    timers = spark.createDataFrame([(7, 1000), (8, -5)], "id long, time_ms long")
    written = spark_writer.write(
        spark,
        f"file://{tmp_path}/store/history/savepoints/counts",
        [NewOperator("count", KEY_SCHEMA, [NewState(COUNT, counts), NewTimers("alarms", timers)])],
        max_parallelism=64,
        parallelism=3,
    )
    assert verify_state(written).problems == []
    with StateReader.open(written, shards_open=3) as reader:
        rows = reader.table("count", "count").reader().read_all().to_pylist()
        assert {row["key"]["id"]: row["value"] for row in rows} == dict(enumerate(range(100, 200)))
        assert {row["time_ms"] for row in reader.table("count", "alarms").reader().read_all().to_pylist()} == {1000, -5}
        assert len(reader.point.shard_ranges("count")) == 3


@pytest.mark.exhaustive
def test_spark_reads_every_kind_and_type(spark: SparkSession) -> None:
    frames = spark_source.read(spark, LOCATION)
    for (uid, name), frame in frames.items():
        assert uid == UID
        assert frame.count() == len(KEYS) * (len(KINDS[name]) if name in KINDS else 1)
        frame.collect()
    nested = (
        spark.read.format("keyscale-state")
        .options(path=LOCATION, operator=UID, state="map", flattenCollectionTypes="false", key='["", 0]')
        .load()
    )
    assert [row.value for row in nested.collect()] == [dict(KINDS["map"])]


@pytest.mark.exhaustive
def test_spark_writes_every_kind_and_type_as_it_has_read_it(spark: SparkSession, tmp_path: Path) -> None:
    frames = spark_source.read(spark, LOCATION)
    states = [NewState(each, frames[UID, each.name]) for each in DESCRIPTORS]
    location = f"file://{tmp_path}/store/history/savepoints/again"
    written = spark_writer.write(spark, location, [NewOperator(UID, KEY_SCHEMA_OF_ALL, states)], max_parallelism=8)
    with StateReader.open(LOCATION, shards_open=8) as before, StateReader.open(written, shards_open=8) as after:
        for difference in differences(before, after):
            assert list(difference.changes()) == []


@pytest.mark.exhaustive
def test_a_task_that_refuses_rows_says_why(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1, 1), (1, 2)], "id long, value long")
    location = f"file://{tmp_path}/store/history/savepoints/twice"
    with pytest.raises(PythonException, match="1 rows have the key of another row"):
        spark_writer.write(spark, location, [NewOperator("count", KEY_SCHEMA, [NewState(COUNT, rows)])], parallelism=1)
