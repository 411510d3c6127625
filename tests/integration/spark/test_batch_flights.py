"""The main job counts every flight once, even if records are delivered again."""

from __future__ import annotations

import json
import random
import runpy
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keyscale.jobs.examples.flights as example
from keyscale import StreamEnvironment
from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.runner import BatchRunner, RunInfo, subtask_specs
from keyscale.jobs.runtime.executor.subtask_starts import SubtaskStart
from keyscale.jobs.spark_internals.affinity import PlacementDataset
from keyscale.state.documents.state_version import NO_BATCH
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.restore.plan import RestorePlan, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keyscale.jobs.graph.topology import Topology

pytestmark = pytest.mark.real

SCRIPT = Path(example.__file__)


def some_flights(count: int) -> list[dict[str, Any]]:
    random_ = random.Random(7)
    return [
        {
            "report_id": f"r{number}",
            "sched_ms": 1_357_000_000_000 + random_.randrange(40) * 60_000,
            "carrier": "UA",
            "flight": number,
            "tailnum": random_.choice([None, "N1", "N2", "N3"]),
            "origin": "JFK",
            "dest": random_.choice(["LAX", "SFO", "ORD"]),
            "dep_delay": random_.choice([None, float(random_.randrange(-20, 200))]),
        }
        for number in range(count)
    ]


def test_totals_of_every_aircraft_equal_a_plain_fold(spark: SparkSession, tmp_path: Path) -> None:
    flights = some_flights(400)
    again = flights[:60]
    batches = [flights[:150], flights[150:] + again[:30], again]
    rows = run(spark, tmp_path, batches)
    assert sorted(row.report_id for row in rows) == sorted(flight["report_id"] for flight in flights)

    final = {row.tailnum: row for row in sorted(rows, key=lambda row: row.flights)}
    by_aircraft = defaultdict(list)
    for flight in flights:
        by_aircraft[flight["tailnum"]].append(flight)
    assert set(final) == set(by_aircraft)
    visits = Counter((flight["tailnum"], flight["dest"]) for flight in flights)
    most = Counter[tuple[str | None, str]]()
    for row in rows:
        most[row.tailnum, row.dest] = max(most[row.tailnum, row.dest], row.dest_flights)
    assert most == visits
    for aircraft, own in by_aircraft.items():
        latest = max(own, key=lambda flight: (flight["sched_ms"], flight["report_id"]))
        assert final[aircraft].flights == len(own)
        assert final[aircraft].dep_delay_sum == sum(flight["dep_delay"] or 0.0 for flight in own)
        assert final[aircraft].last_airport == latest["dest"]


def run(spark: SparkSession, path: Path, batches: list[list[dict[str, Any]]]) -> list[Any]:
    """Runs the script as a driver does, and its batches one after the other; returns all rows of the output."""
    (path / "in").mkdir()

    def run_batches(topology: Topology) -> None:
        info = RunInfo(
            JobId("flights"),
            Attempt(1),
            KeyGroupRanges.of_count(128, 2),
            HashId.SPARK,
            (path / "store").as_uri(),
            path / "local",
        )
        placement = PlacementDataset.create(spark, 2)
        runner = BatchRunner(spark, topology, info, placement)
        starts = {
            node.uid: tuple(
                SubtaskStart(version_of(RestorePlan(), spec.key_group_range, NO_BATCH), RestorePlan())
                for spec in subtask_specs(node, info)
            )
            for node in topology.operators
        }
        committed = CommittedState(NO_BATCH, starts, {}, {}, 0)
        schema = topology.sources[0].frame.schema
        for number, batch in enumerate(batches):
            (path / f"{number}.json").write_text("\n".join(json.dumps(report) for report in batch))
            frame = spark.read.schema(schema).json(str(path / f"{number}.json"))
            outcome = runner.run(runner.of_query(frame), committed)
            runner.publish(outcome.sinks)
            committed = committed.after(BatchId(number), outcome, {}, 0)
        placement.release()

    env = StreamEnvironment(spark, {"input": str(path / "in"), "output": str(path / "out")}, run_batches)
    with env.provided():
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return spark.read.parquet(str(path / "out")).collect()
