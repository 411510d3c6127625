"""The Spark session of in-process tests: local, small, with the settings that the runtime relies on."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


def start_spark(scratch: Path, cores: int = 2) -> SparkSession:
    """Starts a Spark session in this process, with all its files under `scratch`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["TZ"] = "UTC"  # as Spark's own collect() and transformWithState return local times
    time.tzset()
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("keyscale-tests")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", tempfile.mkdtemp(prefix="spark-local-", dir=scratch))
        .config("spark.pyspark.python", sys.executable)
    )
    archive = ClassArchive.of_environment().settings()
    for key, value in {**DEFAULT_SETTINGS, **REQUIRED_SETTINGS, **LOCAL_SETTINGS, **archive}.items():
        builder = builder.config(key, value)
    java = archive["spark.driver.extraJavaOptions"]
    builder = builder.config("spark.driver.extraJavaOptions", f'{java} -Djava.io.tmpdir="{scratch}"')
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
