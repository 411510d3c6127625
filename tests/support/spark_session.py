"""The Spark session of in-process tests: local, small, with the settings that Keyscale's runtime relies on."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pathlib import Path

# As the launcher sets them for real drivers; see docs/decisions.
RUNTIME_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.shuffle.reduceLocality.enabled": "false",
}


def start_spark(scratch: Path, cores: int = 2) -> SparkSession:
    """Starts a Spark session in this process, with all its files under `scratch`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("keyscale-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", tempfile.mkdtemp(prefix="spark-local-", dir=scratch))
        .config("spark.pyspark.python", sys.executable)
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in RUNTIME_SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
