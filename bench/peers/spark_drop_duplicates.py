"""Spark's own deduplication in the JVM.

It is dropDuplicates, or dropDuplicatesWithinWatermark, which forgets old ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.peers import spark
from bench.peers.task import DedupTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame


def run(*, within_watermark: bool = False, **options: Any) -> Mapping[str, Any]:
    """Deduplicates with dropDuplicates, without limit or within a watermark."""
    return spark.run(DedupTask(**options), first_within_watermark if within_watermark else _without_limit)


def _without_limit(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["id"])


def first_within_watermark(events: DataFrame) -> DataFrame:
    """Returns the first row of each id within 36 hours."""
    timed = events.selectExpr("*", "timestamp_millis(ts_ms) AS event_time").withWatermark("event_time", "36 hours")
    return timed.dropDuplicatesWithinWatermark(["id"]).drop("event_time")
