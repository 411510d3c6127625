"""Relied on: the events of idle queries, and the private interface of listeners.

A failure here means that drivers do not start, or that a job without input seems to go on looking for input: its
changes are taken back, and its timers fire half a minute late.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from keyscale.jobs.spark_internals.idle_queries import IdleQueries
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.real


@pytest.fixture
def idle(spark: SparkSession) -> Iterator[IdleQueries]:
    queries = IdleQueries(spark)
    yield queries
    queries.close()


@contextmanager
def running(stream: DataFrame, positions: Path, see: Callable[[DataFrame, int], None], **trigger: str) -> Iterator[Any]:
    writer: DataStreamWriter = stream.writeStream.foreachBatch(see).option("checkpointLocation", str(positions))
    query = (writer.trigger(**trigger) if trigger else writer).start()  # type: ignore[call-overload]
    try:
        yield query
    finally:
        query.stop()


def wait_until_idle(idle: IdleQueries, query: StreamingQuery) -> None:
    wait_until(lambda: idle.has(query), 60, what=f"a query that waits, not {query.status}")


@pytest.mark.parametrize("trigger", [{}, {"processingTime": "2 seconds"}], ids=["at once", "by interval"])
def test_a_query_waits_between_batches_and_not_within_one(
    spark: SparkSession, idle: IdleQueries, tmp_path: Path, trigger: dict[str, str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"number": 1}')
    within: list[bool] = []

    def note(_frame: DataFrame, _batch_id: int) -> None:
        within.append(idle.has(query))

    stream = spark.readStream.schema("number bigint").json(str(tmp_path / "in"))
    with running(stream, tmp_path / "positions", note, **trigger) as query:
        wait_until(lambda: within, 60, what="a batch")
        wait_until_idle(idle, query)
        (tmp_path / "in" / "b.json").write_text('{"number": 2}')
        wait_until(lambda: len(within) == 2, 60, what="another batch")
        wait_until_idle(idle, query)
    assert within == [False, False]


def test_a_query_whose_source_is_slow_to_look_for_input_is_seen_to_wait(
    spark: SparkSession, idle: IdleQueries, tmp_path: Path
) -> None:
    spark.dataSource.register(SlowAndEmpty)
    stream = spark.readStream.format("slow-and-empty").load()
    with running(stream, tmp_path / "positions", lambda _frame, _batch_id: None) as query:
        wait_until_idle(idle, query)
        wait_until(
            lambda: query.status["isTriggerActive"] and idle.has(query), 60, what="another look of one that waits"
        )


class SlowAndEmpty(DataSource):
    """A source without records that takes a second to find that out."""

    @classmethod
    def name(cls) -> str:
        return "slow-and-empty"

    def schema(self) -> str:
        return "number bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark's names
        return SlowReader()


class SlowReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"read": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        time.sleep(1)
        return {"read": 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # noqa: ARG002
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002 - there is nothing to read
        return iter(())
