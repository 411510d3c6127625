"""A query of real Spark over files of views, and the job that goes on where the query stops."""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyscale.state_import import import_spark_checkpoint
from keyscale.state_import.target_program import TargetProgram
from keyscale.state_io.verified_state import verify_state
from tests.support.rehearsal.rehearsal import MAX_PARALLELISM, Rehearsal

if TYPE_CHECKING:
    from random import Random

    from pyspark.sql import DataFrame, SparkSession

    from keyscale.state_import import ImportReport

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COLUMNS = "id bigint, page string, at timestamp, amount double"
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

    def timed(self) -> DataFrame:
        """Returns the stream of the files, one per batch, with a watermark of five seconds."""
        frame = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return frame.json(str(self.input)).withWatermark("at", "5 seconds")

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
