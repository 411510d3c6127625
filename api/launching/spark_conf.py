"""The Spark settings that a job may choose.

Any other setting could load code, read files or break exactly-once processing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.errors import SparkConfNotAllowedError

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOWED_KEYS = frozenset(
    {
        "spark.cores.max",
        "spark.driver.cores",
        "spark.driver.maxResultSize",
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.pyspark.memory",
        "spark.kryoserializer.buffer.max",
        "spark.locality.wait",
        "spark.log.level",
        "spark.memory.fraction",
        "spark.memory.storageFraction",
        "spark.network.timeout",
        "spark.python.worker.memory",
        "spark.rpc.message.maxSize",
        "spark.scheduler.mode",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.pollingDelay",
        "spark.task.cpus",
        "spark.task.maxFailures",
        "spark.ui.enabled",
    }
)
_VALUE_CHARACTERS_MAX = 100


def check_spark_conf(conf: Mapping[str, str]) -> None:
    """Refuses settings that a job may not choose.

    Raises:
        SparkConfNotAllowedError: A key is not on the list, or a value is not a plain word or number.
    """
    refused = sorted(key for key in conf if key not in ALLOWED_KEYS)
    if refused:
        raise SparkConfNotAllowedError(f"not allowed: {', '.join(key[:100] for key in refused[:5])}")
    for key, value in conf.items():
        plain = value.replace(".", "").replace("-", "").replace("_", "")
        if not plain.isalnum() or not value.isascii() or len(value) > _VALUE_CHARACTERS_MAX:
            raise SparkConfNotAllowedError(f"the value of {key} is not a plain word or number")
