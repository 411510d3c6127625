"""Reads the state of a streaming query with Spark's state reader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from bench.peers.spark import session

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(*, work: str, keys: int, cores: int) -> Mapping[str, Any]:
    """Reads the state of a query that has counted each key.

    Args:
        work: A fresh folder.
        keys: The number of keys.
        cores: The cores, and so the state partitions.

    Returns:
        `rate`: keys per second of the read.
    """
    spark = session(work, cores)
    spark.range(keys).write.parquet(f"{work}/input")
    counts = spark.readStream.schema("id bigint").parquet(f"{work}/input").groupBy("id").count()
    query = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", f"{work}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    rows = Observation()
    started = time.perf_counter()
    state = spark.read.format("statestore").load(f"{work}/checkpoint")
    state.observe(rows, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    if rows.get["rows"] != keys:
        raise ValueError(f"{rows.get['rows']:,} rows were read instead of {keys:,}")
    spark.stop()
    return {"rate": keys / seconds}
