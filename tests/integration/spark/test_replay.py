"""A replay reads a batch's own records with Spark, and runs Spark's steps and the job's functions over them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale import FileSink, KeyedProcessFunction, OutputTag, StreamEnvironment, ValueStateDescriptor
from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.jobs.runtime.batch.job_sources import JobSources
from keyscale.jobs.runtime.driver.execution import operator_declarations
from keyscale.jobs.spark_internals.checkpoint_directory import PositionsDirectory
from keyscale.replay.errors import ReplayRecordsGoneError
from keyscale.replay.oldest_records import oldest_with_records
from keyscale.replay.recorded_input import read_records
from keyscale.replay.replayed_graph import replay_graph
from keyscale.replay.replayed_operators import ReplayedOperators
from keyscale.replay.report import Report, compare_sinks
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned
from keyscale.state.inspection.recorded_batch import RecordedBatch
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keyscale.jobs.graph.topology import Topology

pytestmark = pytest.mark.real

JOB = JobId("replayed")
EVERY_SECOND = OutputTag("second", pa.schema([("user", pa.string())]))


class Count(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Any, context: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count % 2 == 0:
            context.output(EVERY_SECOND, {"user": row.user})
        yield row.user, row.page, count


@pytest.fixture
def topology(spark: SparkSession, tmp_path: Path) -> Topology:
    """Two sources, a union, a function with a side output, and a step of Spark before a sink."""
    declared: list[Topology] = []
    env = StreamEnvironment(spark, {}, declared.append)
    streams = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for number in range(2):
            file = tmp_path / name / f"{number}.json"
            rows = [{"user": user, "page": f"/{name}/{number}"} for user in ("ada", "bob", "ada", "")]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
        frame = spark.readStream.schema("user string, page string").option("maxFilesPerTrigger", 1)
        streams.append(env.stream(frame.json(str(tmp_path / name)).where("user <> ''")).uid(name))
    counted = streams[0].union(streams[1]).key_by("user")
    counts = counted.process(
        Count(), output={"user": "string", "page": "string", "n": "bigint"}, side_outputs=[EVERY_SECOND]
    ).uid("counts")
    counts.where("n > 1").select("user", "n").sink_to(FileSink(str(tmp_path / "out"), "json")).uid("files")
    counts.get_side_output(EVERY_SECOND).sink_to(FileSink(str(tmp_path / "side"))).uid("seconds")
    env.execute()
    return declared[0]


@pytest.fixture
def batch(topology: Topology, tmp_path: Path) -> RecordedBatch:
    """The second of two batches that Spark has planned; the first one is committed without changes."""
    sources = JobSources(topology.sources)
    directory = PositionsDirectory(tmp_path / "positions")
    planned = [sources.positions({})]
    directory.write(planned[0])
    query = sources.stream().writeStream.foreachBatch(lambda *_: planned.append(directory.read_new()))
    query.trigger(availableNow=True).option("checkpointLocation", directory.location).start().awaitTermination()
    _, first, second = planned
    store = LocalObjectStore(tmp_path / "store")
    log = CommitLog(store, Layout(JOB))
    attempt = Attempt(1)
    log.append(1, AttemptOpened(attempt, 2, 16, HashId.SPARK, None, 1, operator_declarations(topology)))
    log.append(2, BatchPlanned(attempt, BatchId(0), {**planned[0], **first}))
    log.append(3, BatchCommitted(attempt, BatchId(0), {}, {}, 1))
    log.append(4, BatchPlanned(attempt, BatchId(1), second))
    return RecordedBatch.of_job(store, JOB)


def test_the_records_of_the_batch_alone_go_through_the_graph_unless_they_are_gone(
    spark: SparkSession, topology: Topology, batch: RecordedBatch, tmp_path: Path
) -> None:
    before = sorted(str(file) for file in tmp_path.rglob("*"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    operators = ReplayedOperators(topology, JOB, batch, scratch)
    sources, records = read_records(spark, topology, batch, scratch)
    assert records is not None
    count = records.count()
    assert count == 6
    tables = replay_graph(spark, topology, batch, operators, sources=sources, records=records)
    rows = {uid: sorted(map(str, table.to_pylist())) for uid, table in tables.items()}
    assert rows == {
        "files": sorted(str({"user": user, "n": n}) for user, n in [("ada", 2), ("ada", 3), ("ada", 4), ("bob", 2)]),
        "seconds": sorted(str({"user": user}) for user in ("ada", "ada", "bob")),
    }
    sinks = compare_sinks(topology, batch, tables, is_whole=True)
    report = Report(batch, "job.py", count, operators.changes, 9, operators.differences, sinks)
    assert list(report.lines(1))[:2] == ["read 6 records; nothing was written", "  operator counts: 2 changed entries"]
    assert sorted(str(file) for file in tmp_path.rglob("*") if scratch not in (file, *file.parents)) == before

    def oldest() -> int | None:
        return oldest_with_records(spark, topology, batch.before.store, JOB, 0)

    assert oldest() == 0
    (tmp_path / "one" / "0.json").unlink()
    assert oldest() == 1
    (tmp_path / "two" / "1.json").unlink()
    with pytest.raises(
        ReplayRecordsGoneError, match=r"records of batch 1 are gone: 1 of its 2 files, such as file:///"
    ):
        read_records(spark, topology, batch, scratch)
    assert oldest() is None
