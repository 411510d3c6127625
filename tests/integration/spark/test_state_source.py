"""Spark reads the state in a snapshot, by SQL and by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.state.layout import location_of
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state_io import spark_source
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import KEYS, KINDS, SAVEPOINT, UID
from tests.support.state.state_job import StateJob, random_batch

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
