"""The end of what executors and their Python workers have written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import httpx

from ...spark_internals.live_executors import DRIVER, live_executors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from ...spark_internals.live_executors import LiveExecutor

LOG_BYTES = 128 << 10
_TIMEOUT_SECONDS = 5.0
_PAGE, _TEXT = "/logPage/", "/log/"
"""Where a worker of Spark's own cluster manager shows a log as a page, and as text."""


def executor_logs(spark: SparkSession) -> dict[str, Callable[[], str]]:
    """Returns how to read the end of each log of an executor."""
    return dict(log for executor in live_executors(spark) for log in logs_of(executor))


def logs_of(executor: LiveExecutor) -> list[tuple[str, Callable[[], str]]]:
    """Returns how to read the logs of an executor, by their titles."""
    title = f"executor {executor.id} on {executor.address}"
    if executor.id == DRIVER:
        return [(title, lambda: "The log of the job has the output of this process.")]
    if not executor.logs:
        return [(title, lambda: "The cluster manager gives no address of its log.")]
    return [(f"{title}: {stream}", partial(end_of_log, url)) for stream, url in executor.logs.items()]


def end_of_log(url: str) -> str:
    """Returns the end of a log, or where to read it."""
    if _PAGE not in url:
        return f"The log is at {url}"
    try:
        text = httpx.get(
            f"{url.replace(_PAGE, _TEXT, 1)}&byteLength={LOG_BYTES}", timeout=_TIMEOUT_SECONDS, trust_env=False
        )
        return text.raise_for_status().text
    except httpx.HTTPError as error:
        return f"The log is at {url}, which the driver cannot read: {error}"
