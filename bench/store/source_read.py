"""Reads a savepoint with Spark's data source for state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.spark import read_rate, session
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
    started = time.perf_counter()
    [state] = spark_source.read(spark, location).values()
    rate = read_rate(state, keys, started)
    spark.stop()
    return {"rate": rate}
