"""The readers of an operator may leave out rows, or read them in any way: its subtasks run once all the same."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark

from keyscale import FileSink, ForeachBatchSink, OutputTag, Ttl
from tests.support.short_form import short_form
from tests.support.spark.batch_rig import (
    TOTALS,
    Rig,
    Totals,
    assert_totals_equal_a_fold,
    declared,
    random_reports,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale import DataStream, SinkContext

pytestmark = pytest.mark.real

BATCHES = [random_reports(seed, 40) for seed in range(2)]


def run(spark: SparkSession, path: Path, job: Callable[[DataStream, str], None]) -> Rig:
    rig = Rig(spark, path, declared(spark, path, job))
    for batch in BATCHES:
        rig.run(batch)
    rig.run(None)
    return rig


STEPS: dict[str, tuple[Callable[[DataFrame], DataFrame], int | None]] = {
    "one row": (lambda frame: frame.limit(1), 1),
    "no row": (lambda frame: frame.limit(0), 0),
    "a filter that is never true": (lambda frame: frame.where("1 = 0"), 0),
    "in order": (lambda frame: frame.orderBy("flights"), None),
    "one task": (lambda frame: frame.coalesce(1), None),
    "one task between columns": (lambda frame: frame.selectExpr("*", "1 AS one").coalesce(1).drop("one"), None),
    "five tasks": (lambda frame: frame.repartition(5), None),
    "a join without matches": (
        lambda frame: frame.join(frame.sparkSession.createDataFrame([], "id string"), "id"),
        0,
    ),
    "twice": (lambda frame: frame.union(frame.where("false")), None),
}
"""Steps, and how many rows each leaves of a batch: None for all. `test_read_once.py` shows how each step is told."""


@pytest.mark.parametrize("name", short_form(STEPS, ["one row", "one task"]))
def test_a_step_of_any_kind_follows_an_operator(spark: SparkSession, tmp_path: Path, name: str) -> None:
    step, rows_of_last = STEPS[name]

    def job(reports: DataStream, output: str) -> None:
        unique = reports.key_by("id").deduplicate(ttl=Ttl(86_400_000)).uid("unique")
        unique.transform(step_of_unique).key_by("aircraft").process(Totals(), output=TOTALS).uid("totals").transform(
            step
        ).sink_to(FileSink(output)).uid("files")

    def step_of_unique(frame: DataFrame) -> DataFrame:
        return frame.coalesce(1)

    run(spark, tmp_path, job)
    written = [spark.read.parquet(str(tmp_path / "out" / f"batch={at}")).collect() for at in range(len(BATCHES) + 1)]
    if rows_of_last is not None:
        assert [len(rows) for rows in written[: len(BATCHES)]] == [rows_of_last] * len(BATCHES)
        return
    rows = [(row.id, row.aircraft, row.flights, row.delay_sum) for rows in written for row in rows]
    assert_totals_equal_a_fold(rows, BATCHES)


@pytest.mark.exhaustive  # "one task" of the steps shows that the rows are there
def test_fewer_partitions_make_fewer_files(spark: SparkSession, tmp_path: Path) -> None:
    def job(reports: DataStream, output: str) -> None:
        totals = reports.key_by("aircraft").process(Totals(), output=TOTALS).uid("totals")
        totals.transform(lambda frame: frame.coalesce(1)).sink_to(FileSink(output)).uid("files")

    run(spark, tmp_path, job)
    for at in range(len(BATCHES)):
        assert len(list(tmp_path.glob(f"out/batch={at}/*.parquet"))) == 1


READS: dict[str, Callable[[DataFrame], Any]] = {
    "nothing": id,
    "the first row": lambda frame: frame.head(),
    "whether there are rows": lambda frame: frame.isEmpty(),
}


@pytest.mark.parametrize("case", short_form(product(READS, (False, True)), [("the first row", True)]), ids=str)
def test_a_function_need_not_read_all_rows(spark: SparkSession, tmp_path: Path, case: tuple[str, bool]) -> None:
    reads, has_side_output = case
    side_outputs = [OutputTag("side", pa.schema([("id", pa.string())]))] if has_side_output else []
    latest: dict[Any, int] = {}

    def write(frame: DataFrame, context: SinkContext) -> None:
        READS[reads](frame)
        if context.batch_id == len(BATCHES) - 1:
            found = frame.groupBy("aircraft").agg(F.max("flights").alias("latest")).collect()
            latest.update({row.aircraft: row.latest for row in found})

    def job(reports: DataStream, _output: str) -> None:
        totals = reports.key_by("aircraft").process(Totals(), output=TOTALS, side_outputs=side_outputs).uid("totals")
        totals.sink_to(ForeachBatchSink(write)).uid("function")

    run(spark, tmp_path, job)
    aircraft = [report[1] for batch in BATCHES for report in batch]
    assert latest == {each: aircraft.count(each) for each in {report[1] for report in BATCHES[-1]}}


def test_a_stream_joined_with_itself_is_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    def job(reports: DataStream, output: str) -> None:
        totals = reports.key_by("aircraft").process(Totals(), output=TOTALS).uid("totals")
        totals.union(totals).sink_to(FileSink(output)).uid("files")

    run(spark, tmp_path, job)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2 * sum(map(len, BATCHES))
