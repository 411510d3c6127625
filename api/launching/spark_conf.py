"""The Spark settings that a job may choose.

Other settings could load code, read files or break exactly-once processing. An administrator may allow further settings
by `KEYSCALE_SPARK_CONF_ALLOWED`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import SparkConfNotAllowedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
_FREE_VALUE_CHARACTERS_MAX = 1000


def check_spark_conf(conf: Mapping[str, str], also_allowed: Collection[str] = ()) -> None:
    """Refuses settings that a job may not choose.

    Args:
        conf: The job's settings.
        also_allowed: Further keys that the administrator allows, with any value in one line; `prefix.*` is every key
            that begins so.

    Raises:
        SparkConfNotAllowedError: A key is not on the list, or a value is not a plain word or number.
    """
    free = {key for key in conf if key not in ALLOWED_KEYS and any(_is_covered(key, by) for by in also_allowed)}
    refused = sorted(key for key in conf if key not in ALLOWED_KEYS and key not in free)
    if refused:
        raise SparkConfNotAllowedError(f"not allowed: {', '.join(key[:100] for key in refused[:5])}")
    for key, value in conf.items():
        if key in free:
            if not value.isprintable() or len(value) > _FREE_VALUE_CHARACTERS_MAX:
                raise SparkConfNotAllowedError(f"the value of {key} is not one line of text")
            continue
        plain = value.replace(".", "").replace("-", "").replace("_", "")
        if not plain.isalnum() or not value.isascii() or len(value) > _VALUE_CHARACTERS_MAX:
            raise SparkConfNotAllowedError(f"the value of {key} is not a plain word or number")


def _is_covered(key: str, allowed: str) -> bool:
    return key.startswith(allowed.removesuffix("*")) if allowed.endswith(".*") else key == allowed
