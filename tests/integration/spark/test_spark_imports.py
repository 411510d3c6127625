"""Jobs go on where queries of real Spark have stopped, with the results of an undisturbed run."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.state_import import import_spark_checkpoint
from keyscale.state_import.target_program import TargetProgram
from keyscale.state_io.verified_state import verify_state
from tests.support.rehearsal.rehearsal import MAX_PARALLELISM, Rehearsal
from tests.support.repository import DOCS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keyscale.state_import import ImportReport

pytestmark = pytest.mark.real

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
WINDOW_S = 4
QUERY_OF_GUIDE, JOB_OF_GUIDE, *_ = re.findall(
    r"```python\n(.*?)```", (DOCS / "guide" / "from-spark.md").read_text(encoding="utf-8"), re.DOTALL
)
END = {"id": -1, "page": "end", "at": (BEGIN + dt.timedelta(seconds=999)).isoformat(), "amount": 0.0}


def views(random: Random, number: int) -> list[dict[str, Any]]:
    """A file of views: ten seconds of them, out of order, and with the ids of one another and of the next file."""
    return [
        {
            "id": random.randrange(number * 20, number * 20 + 40),
            "page": f"/{random.randrange(3)}",
            "at": (BEGIN + dt.timedelta(seconds=number * 10 + random.random() * 10)).isoformat(),
            "amount": float(random.randrange(100)),
        }
        for _ in range(60)
    ]


@dataclass
class MovedQuery:
    """A Spark query over files, and the job that goes on.

    Attributes:
        spark: The session.
        home: The directory of all files.
        files: The rows of each file.
        program: The job.
        emitted: The output of the query, each row with the number of its batch.
    """

    spark: SparkSession
    home: Path
    files: list[list[dict[str, Any]]]
    program: str
    emitted: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def input(self) -> Path:
        return self.home / "in"

    @property
    def parameters(self) -> dict[str, str]:
        return {"input": str(self.input), "output": str(self.home / "out")}

    @property
    def program_file(self) -> Path:
        file = self.home / "job.py"
        file.write_text(self.program)
        return file

    def feed(self, count: int) -> None:
        """Writes the first files, which Spark reads in this order."""
        self.input.mkdir(exist_ok=True)
        for number, rows in enumerate(self.files[:count]):
            file = self.input / f"{number}.json"
            if not file.exists():
                written = self.input / f".{number}"
                written.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
                os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))
                written.rename(file)

    def run(self, query: DataFrame, mode: str = "append") -> None:
        """Runs the query over all files that are there."""
        started = (
            query.writeStream.outputMode(mode)
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .foreachBatch(lambda batch, number: self.emitted.extend((number, row) for row in batch.collect()))
            .trigger(availableNow=True)
            .start()
        )
        started.awaitTermination()

    def lose_commits_after(self, batch: int) -> None:
        """Makes a batch the last committed one, as if the query had died in the next batch."""
        for file in (self.home / "checkpoint" / "commits").glob("[0-9]*"):
            if int(file.name) > batch:
                file.unlink()

    def imported(self, parallelism: int = 2, **options: Any) -> ImportReport:
        """Imports the checkpoint into the store of the rehearsed job, which has a directory per parallelism."""
        report = import_spark_checkpoint(
            self.spark,
            str(self.home / "checkpoint"),
            program=self.program_file,
            parameters=self.parameters,
            to=f"file://{self.home}/job-{parallelism}/store/rehearsed/savepoints/of-spark",
            max_parallelism=MAX_PARALLELISM,
            parallelism=parallelism,
            **options,
        )
        assert report.location is not None
        assert verify_state(report.location).problems == []
        assert all(state.rows == state.entries for state in report.states)
        return report

    def continued(self, report: ImportReport, parallelism: int, *, first: int) -> Rehearsal:
        """Runs the job from the savepoint over the files from a number on; Spark's batches come before them."""
        assert report.location is not None
        home = Path(report.location.removeprefix("file://").partition("/store/")[0])
        program = TargetProgram.load(self.spark, self.program_file, self.parameters)
        schema = program.topology.sources[0].schema
        rows = [[{**row, "at": dt.datetime.fromisoformat(row["at"])} for row in file] for file in self.files]
        rest = [schema.empty_table().from_pylist(each, schema) for each in [*[[]] * (report.batch + 1), *rows[first:]]]
        job = Rehearsal(home, program.topology, rest, lambda _node, table: table)
        job.start(parallelism, report.location)
        job.drain()
        return job


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
    frame = spark.readStream.schema("id bigint, page string, at timestamp, amount double")
    timed = frame.option("maxFilesPerTrigger", 1).json(str(moved.input)).withWatermark("at", "5 seconds")
    aggregated = timed.groupBy(F.window("at", f"{WINDOW_S} seconds"), "page").agg(
        F.count("*").alias("views"), F.avg("amount").alias("mean")
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
