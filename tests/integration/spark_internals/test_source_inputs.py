"""Relied on: the leaves of Spark's analysed plan.

A failure here means that jobs with several sources misread recorded positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol.spark_switches import SPARK_WITHOUT_VARIABLE
from keyscale.jobs.spark_internals.source_inputs import inputs_up_to, kinds_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> list[DataFrame]:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    return [spark.readStream.schema("number bigint").json(str(folder)) for folder in folders]


def test_a_union_of_streams_has_as_many_inputs_and_a_shared_stream_one(streams: list[DataFrame]) -> None:
    a, b, c = streams
    assert inputs_up_to([a.union(b), b.where("number > 1"), c]) == [2, 2, 3]


def test_what_is_no_stream_is_no_input(spark: SparkSession, streams: list[DataFrame]) -> None:
    table = spark.createDataFrame([(1, "one")], "number bigint, name string")
    assert inputs_up_to([streams[0].join(table, "number")]) == [1]


def test_switched_off_each_source_is_one_input(streams: list[DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARK_WITHOUT_VARIABLE, "source-inputs")
    assert inputs_up_to(streams) == [1, 2, 3]


def test_a_streams_kind_says_what_reads_it_and_not_where(spark: SparkSession, streams: list[DataFrame]) -> None:
    a, b, _ = streams
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    assert [kinds_of(frame) for frame in (a, a.union(b).where("number > 1"), rate)] == [
        ("FileSource",),
        ("FileSource", "FileSource"),
        ("rate-micro-batch",),
    ]


def test_switched_off_kinds_are_unknown(streams: list[DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARK_WITHOUT_VARIABLE, "source-inputs")
    assert kinds_of(streams[0]) == ()
