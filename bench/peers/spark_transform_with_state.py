"""Deduplication as a StatefulProcessor in Python.

This is Spark's own way to keep state in PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.peers import spark
from bench.peers.task import DedupTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd  # type: ignore[import-untyped] # publishes no types
    from pyspark.sql import DataFrame, Row


class DeduplicateRows(StatefulProcessor):
    """Passes a key's first row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "seen boolean")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803 - Spark's name
        first = next(rows)
        if not self._seen.exists():
            self._seen.update((True,))
            yield first

    def close(self) -> None:
        pass


class DeduplicatePandas(StatefulProcessor):
    """Passes a key's first row, on pandas frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "seen boolean")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N802, N803 - Spark's name
        first = next(rows)
        if not self._seen.exists():
            self._seen.update((True,))
            yield first.head(1)

    def close(self) -> None:
        pass


def run(*, pandas: bool = False, **options: Any) -> Mapping[str, Any]:
    """Deduplicates with transformWithState, row by row or on pandas frames."""

    def transform(events: DataFrame) -> DataFrame:
        keyed = events.groupBy("id")
        if pandas:
            return keyed.transformWithStateInPandas(DeduplicatePandas(), spark.SCHEMA, "Append", "None")
        return keyed.transformWithState(DeduplicateRows(), spark.SCHEMA, "Append", "None")

    return spark.run(DedupTask(**options), transform)
