"""Relied on: the words of a waiting query.

A failure here means that an idle job shows the rates of its last batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.query_status import is_waiting_for_input
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_a_query_waits_between_batches_and_not_within_one(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"number": 1}')
    within: list[bool] = []

    def note(_frame: DataFrame, _batch_id: int) -> None:
        within.append(is_waiting_for_input(query))

    stream = spark.readStream.schema("number bigint").json(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "positions")).start()
    try:
        wait_until(lambda: within and is_waiting_for_input(query), 60, what=f"a query that waits, not {query.status}")
    finally:
        query.stop()
    assert within == [False]
