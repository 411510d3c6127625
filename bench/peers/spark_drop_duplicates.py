"""Spark's own deduplication, in the JVM: dropDuplicates, or dropDuplicatesWithinWatermark, which forgets ids after a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.peers import spark
from bench.peers.task import DedupTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame


def run(*, within_watermark: bool = False, **options: Any) -> Mapping[str, Any]:
    """Deduplicate with dropDuplicates, for ever or within a watermark."""
    return spark.run(DedupTask(**options), _within_watermark if within_watermark else _for_ever)


def _for_ever(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["id"])


def _within_watermark(events: DataFrame) -> DataFrame:
    timed = events.selectExpr("*", "timestamp_millis(ts_ms) AS event_time").withWatermark("event_time", "36 hours")
    return timed.dropDuplicatesWithinWatermark(["id"]).drop("event_time")
