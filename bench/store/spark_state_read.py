"""Reads the state of a streaming query with Spark's state reader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.peers.spark import read_rate, session

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
    started = time.perf_counter()
    state = spark.read.format("statestore").load(f"{work}/checkpoint")
    rate = read_rate(state, keys, started)
    spark.stop()
    return {"rate": rate}
