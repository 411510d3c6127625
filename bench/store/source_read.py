"""Reads a savepoint with Spark's data source for state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from bench.peers.spark import session
from bench.store.state_io import write_savepoint
from keyscale.state_io import spark_source

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(*, work: str, keys: int, cores: int) -> Mapping[str, Any]:
    """Reads a savepoint into Spark.

    Args:
        work: A fresh folder.
        keys: The number of keys.
        cores: The cores, and so the parts of the savepoint.

    Returns:
        `rate`: keys per second of the read.
    """
    location = write_savepoint(Path(work), keys, parallelism=cores)
    spark = session(work, cores)
    rows = Observation()
    started = time.perf_counter()
    [state] = spark_source.read(spark, location).values()
    state.observe(rows, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    if rows.get["rows"] != keys:
        raise ValueError(f"{rows.get['rows']:,} rows were read instead of {keys:,}")
    spark.stop()
    return {"rate": keys / seconds}
