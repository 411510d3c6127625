"""Batches of a job with two operators, run as a driver runs them but without its log."""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, Ttl, ValueStateDescriptor
from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.jobs.errors import SinkUnavailableError
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.runner import BatchRunner, RunInfo, subtask_specs
from keyscale.jobs.runtime.executor.subtask_starts import SubtaskStart
from keyscale.jobs.runtime.retries import Retries
from keyscale.jobs.spark_internals.affinity import PlacementDataset
from keyscale.state.documents.state_version import NO_BATCH
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.restore.plan import RestorePlan, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale import DataStream, ProcessContext, Row, RuntimeContext, Sink
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.protocol.messages import SinkOutage
    from keyscale.jobs.runtime.batch.batch_outcome import BatchOutcome
    from keyscale.jobs.runtime.batch.processing_clock import ProcessingClock


PARALLELISM = 2
INPUT = "id string, aircraft string, delay bigint"
TOTALS = {"id": "string", "aircraft": "string", "flights": "bigint", "delay_sum": "bigint"}
Report = tuple[str, str | None, int]


class Totals(KeyedProcessFunction):
    """A running count and sum, and for the tests of failures: what goes wrong on demand, by the aircraft's name."""

    def open(self, context: RuntimeContext) -> None:
        self.flights = context.get_state(ValueStateDescriptor("flights", pa.int64()))
        self.delay_sum = context.get_state(ValueStateDescriptor("delay_sum", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        if row.aircraft == "raises":
            raise ValueError(f"no {row.id}")
        if row.aircraft == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if row.aircraft == "updates wrongly":
            self.flights.update(row.id)
        flights = (self.flights.value() or 0) + 1
        delay_sum = (self.delay_sum.value() or 0) + row.delay
        self.flights.update(flights)
        self.delay_sum.update(delay_sum)
        sum_out = row.id if row.aircraft == "yields wrongly" else delay_sum
        yield {"id": row.id, "aircraft": context.current_key, "flights": flights, "delay_sum": sum_out}


def main_job(reports: DataStream, output: str, *, sink: Sink | None = None) -> None:
    unique = reports.key_by("id").deduplicate(ttl=Ttl(86_400_000)).uid("unique")
    totals = unique.key_by("aircraft").process(Totals(), output=TOTALS).uid("totals")
    totals.sink_to(sink or FileSink(output)).uid("files")


def nothing_committed(topology: Topology, info: RunInfo) -> CommittedState:
    """Returns the state of a job before its first batch."""
    starts = {
        node.uid: tuple(
            SubtaskStart(version_of(RestorePlan(), spec.key_group_range, NO_BATCH), RestorePlan())
            for spec in subtask_specs(node, info)
        )
        for node in topology.operators
    }
    return CommittedState(NO_BATCH, starts, {}, {}, 0)


@dataclass
class Rig:
    """Runs batches as the driver does, without its log: what a batch gives is committed if it returns."""

    spark: SparkSession
    path: Path
    topology: Topology
    hash_id: HashId = HashId.SPARK
    parallelism: int = PARALLELISM
    batch_id: BatchId = NO_BATCH
    sink_retries: Retries = field(default_factory=lambda: Retries(0, awaited=SinkUnavailableError))
    outages: list[SinkOutage | None] = field(default_factory=list)
    clock: ProcessingClock | None = None
    runner: BatchRunner = field(init=False)
    committed: CommittedState = field(init=False)

    def __post_init__(self) -> None:
        self._info = info = RunInfo(
            job_id=JobId("job"),
            attempt=Attempt(1),
            ranges=KeyGroupRanges.of_count(128, self.parallelism),
            hash_id=self.hash_id,
            store_url=(self.path / "store").as_uri(),
            local_root=self.path / "local",
        )
        self.placement = PlacementDataset.create(self.spark, self.parallelism)
        self.runner = BatchRunner(
            self.spark,
            self.topology,
            info,
            self.placement,
            sink_retries=self.sink_retries,
            on_outage=self.outages.append,
            clock=self.clock,
        )
        self.committed = nothing_committed(self.topology, info)

    def restart(self) -> None:
        """Goes on from what is committed as another driver would."""
        self.runner = BatchRunner(self.spark, self.topology, self._info, self.placement, clock=self.clock)

    def run(self, reports: list[Report] | None) -> BatchOutcome:
        """Runs a batch, without input if there are no reports, and takes it as committed."""
        batch_id = BatchId(self.batch_id + 1)
        frame = None if reports is None else self.frame(reports)
        outcome = self.runner.run(frame, self.committed)
        self.runner.publish(outcome.sinks)
        time = outcome.time_after(self.committed.time, of_spark=frame is not None)
        self.committed, self.batch_id = self.committed.after(batch_id, outcome, {}, 0, time), batch_id
        return outcome

    def fail(self, reports: list[Report]) -> KeyscaleError:
        """Runs a batch that must fail, and gives the error."""
        with pytest.raises(KeyscaleError) as failure:
            self.runner.run(self.frame(reports), self.committed)
        return failure.value

    def frame(self, reports: list[Report]) -> DataFrame:
        return self.runner.of_query(self.spark.createDataFrame(reports, INPUT).repartition(2))

    def output(self) -> list[tuple[Any, ...]]:
        rows = self.spark.read.parquet(str(self.path / "out")).collect()
        return sorted(((row.id, row.aircraft, row.flights, row.delay_sum) for row in rows), key=repr)


def declared(
    spark: SparkSession, path: Path, job: Callable[[DataStream, str], None], *, split_column: str | None = None
) -> Topology:
    """Returns a job's graph; `split_column` names the split of the source, as of a source in Python."""
    executed: list[Topology] = []
    env = StreamEnvironment(spark, {}, executed.append)
    (path / "in").mkdir()
    frame = spark.readStream.schema(INPUT).json(str(path / "in"))
    if split_column is not None:
        frame = frame.withMetadata(split_column, {"keyscale.split": [0, 1]})
    job(env.stream(frame), str(path / "out"))
    env.execute()
    return executed[0]


def random_reports(seed: int, count: int) -> list[Report]:
    random_ = random.Random(seed)
    aircraft = [None, *(f"N{number}" for number in range(7))]
    return [
        (f"r{random_.randrange(count * 2)}", random_.choice(aircraft), random_.randrange(100)) for _ in range(count)
    ]


def assert_totals_equal_a_fold(output: list[tuple[Any, ...]], batches: list[list[Report]]) -> None:
    """Every report counted once; the running totals of an aircraft are those of some order of its reports."""
    first: dict[str, list[Report]] = defaultdict(list)
    for reports in batches:
        fresh: dict[str, list[Report]] = defaultdict(list)
        for report in reports:
            if report[0] not in first:
                fresh[report[0]].append(report)
        first.update(fresh)
    assert sorted(row[0] for row in output) == sorted(first)
    by_aircraft: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for row in output:
        by_aircraft[row[1]].append(row)
    for aircraft, rows in by_aircraft.items():
        rows.sort(key=lambda row: row[2])
        assert [row[2] for row in rows] == list(range(1, len(rows) + 1))
        before = 0
        for report_id, _, _, delay_sum in rows:
            assert (report_id, aircraft, delay_sum - before) in first[report_id]
            before = delay_sum
