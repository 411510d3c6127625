"""Jobs go on where queries of real Spark have stopped, with the results of an undisturbed run."""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.state_import import import_spark_checkpoint, spark_import
from keyscale.state_import.errors import ImportCountsDifferError, ImportFailedError, SparkCheckpointError
from tests.support.repository import DOCS
from tests.support.spark.moved_query import END, MovedQuery, views

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keyscale.state_import import ImportReport
    from tests.support.rehearsal.rehearsal import Rehearsal

pytestmark = pytest.mark.real

WINDOW_S = 4
QUERY_OF_GUIDE, JOB_OF_GUIDE, *_ = re.findall(
    r"```python\n(.*?)```", (DOCS / "guide" / "from-spark.md").read_text(encoding="utf-8"), re.DOTALL
)


def windows_of(moved: MovedQuery, report: ImportReport, job: Rehearsal) -> list[tuple[int, str, int, float]]:
    """The windows that the query has emitted until the import, and then the job."""
    of_spark = [
        (int(row.window.start.timestamp() * 1000), row.page, row.views, row.mean)
        for number, row in moved.emitted
        if number <= report.batch
    ]
    of_job = [(row["window_start"], row["page"], row["views"], row["mean"]) for row in job.output("files")]
    assert of_job
    return sorted([*of_spark, *of_job])


def expected(files: list[list[dict[str, Any]]]) -> list[tuple[int, str, int, float]]:
    """The windows of an undisturbed run."""
    seen: set[int] = set()
    amounts: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in (row for file in files for row in file):
        if row["id"] not in seen and row["page"] != "end":
            seen.add(row["id"])
            at_s = int(dt.datetime.fromisoformat(row["at"]).timestamp())
            amounts[(at_s - at_s % WINDOW_S) * 1000, row["page"]].append(row["amount"])
    return sorted((start, page, len(each), sum(each) / len(each)) for (start, page), each in amounts.items())


def test_a_job_emits_the_windows_that_a_query_has_begun(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(3)
    ids = iter(range(1000))
    files = [[{**view, "id": next(ids)} for view in views(random, number)] for number in range(3)]
    moved = MovedQuery(spark, tmp_path, [*files, [END]], JOB_OF_GUIDE)
    moved.feed(2)
    aggregated = (
        moved.timed()
        .groupBy(F.window("at", f"{WINDOW_S} seconds"), "page")
        .agg(F.count("*").alias("views"), F.avg("amount").alias("mean"))
    )
    moved.run(aggregated)
    moved.lose_commits_after(0)
    report = moved.imported()
    assert report.batch == 0
    of_batch, of_operator = report.notes
    assert of_batch.startswith("batch 1 of the query is not committed")
    assert of_operator == "operator 'unique' starts empty"
    job = moved.continued(report, 3, first=1)
    assert windows_of(moved, report, job) == expected(moved.files)


@pytest.mark.exhaustive
def test_the_guides_job_goes_on_where_the_guides_query_has_stopped(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(7)
    moved = MovedQuery(spark, tmp_path, [*(views(random, number) for number in range(4)), [END]], JOB_OF_GUIDE)
    moved.feed(3)
    names: dict[str, Any] = {"spark": spark, "F": F, "directory": str(moved.input)}
    exec(QUERY_OF_GUIDE, names)  # noqa: S102 - code of our own page
    moved.run(names["counted"])
    assert any(number == 2 for number, _ in moved.emitted)
    for parallelism in (1, 3):
        report = moved.imported(parallelism)
        taken = {(state.uid, state.state): state.spark_operator for state in report.states}
        assert taken == {("windows", "window_contents"): 0, ("windows", "_event_timers"): 0, ("unique", "seen"): 1}
        job = moved.continued(report, 4 - parallelism, first=3)
        assert windows_of(moved, report, job) == expected(moved.files)


@pytest.mark.exhaustive
def test_what_does_not_fit_is_refused_and_nothing_is_published(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = MovedQuery(spark, tmp_path, [views(Random(1), 0)], JOB_OF_GUIDE)
    moved.feed(1)
    names: dict[str, Any] = {"spark": spark, "F": F, "directory": str(moved.input)}
    exec(QUERY_OF_GUIDE, names)  # noqa: S102 - code of our own page
    with pytest.raises(SparkCheckpointError, match="has no directory `offsets`"):
        moved.imported()
    moved.run(names["counted"])
    dry = import_spark_checkpoint(
        spark, str(tmp_path / "checkpoint"), program=moved.program_file, parameters=moved.parameters, to=None
    )
    assert dry.location is None
    assert {(state.uid, state.state, state.entries) for state in dry.states} == {
        ("windows", "window_contents", None),
        ("windows", "_event_timers", None),
        ("unique", "seen", None),
    }
    with pytest.raises(ImportFailedError, match="missing"):
        moved.imported(values={("windows", "window_contents"): "value.missing"})
    moved.program = JOB_OF_GUIDE.replace("TumblingWindows(4000)", "TumblingWindows(8000)")
    with pytest.raises(ImportFailedError, match="a window of Spark is not 8000 ms long"):
        moved.imported()
    moved.program = JOB_OF_GUIDE
    monkeypatch.setattr(spark_import, "_counted", lambda states: {state.name: 0 for state in states})
    with pytest.raises(ImportCountsDifferError):
        moved.imported()
    assert list(tmp_path.rglob("manifest.json")) == []
