"""Spark reads the state in a snapshot: each state, a pushed-down key, and SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark

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
    counts = source.load()
    assert counts.rdd.getNumPartitions() == 3
    assert {row.key.id: row.value for row in counts.collect()} == job.reference
    key = next(iter(job.reference))
    assert [row.value for row in counts.where(F.col("key.id") == key).collect()] == [job.reference[key]]
    counts.createOrReplaceTempView("counts")
    assert spark.sql("select sum(value) total from counts").first()["total"] == sum(job.reference.values())
    one = source.option("key", str(key)).load()
    assert one.rdd.getNumPartitions() == 1
    assert [row.value for row in one.collect()] == [job.reference[key]]


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
