"""Dead letters of functions and sinks count once per committed batch, however often the batch has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from keyscale import FileSink, ForeachBatchSink, KeyedProcessFunction, PostgresSink, SinkUnavailableError
from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.jobs.protocol.messages import Commit
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.jobs.runtime.batch.batch_metrics import operator_metrics, sink_metrics
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.retries import Retries
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driven_job import write_files
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT
from tests.support.spark.batch_rig import Rig, declared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale import DataStream, ProcessContext, Row, RuntimeContext, SinkContext
    from keyscale.jobs.protocol.messages import DriverMetrics

pytestmark = pytest.mark.real

JOB = ROOT / "tests" / "support" / "jobs" / "dead_letters_job.py"


class Checked(KeyedProcessFunction):
    """Counts reports by aircraft, and fails on reports without one."""

    def open(self, context: RuntimeContext) -> None:
        self.reports = context.metrics.counter("reports", labels=["aircraft"])

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - not needed
        self.reports.labels(aircraft=row.aircraft).inc()
        if row.aircraft is None:
            raise ValueError(row.id)
        yield row


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint CHECK (amount >= 0))")
        connection.execute("CREATE TABLE reports (id text, aircraft text, delay bigint CHECK (delay >= 0))")
    yield postgres_url
    OpenMoves.close(postgres_url, "job")


def counted(metrics: DriverMetrics) -> dict[str, int]:
    parts = (*metrics.operators, *metrics.sinks)
    return {each.uid: each.dead_letters for each in parts if each.dead_letters is not None}


def counted_by_function(metrics: DriverMetrics) -> dict[str, float]:
    assert metrics.counters is not None
    return {each.labels["aircraft"]: each.values[0] for each in metrics.counters.user}


def test_a_batch_that_runs_again_as_a_sink_was_away_counts_its_dead_letters_and_its_functions_metrics_once(
    spark: SparkSession, tmp_path: Path, database: str
) -> None:
    away = [True, True, False, False]

    def fail_at_first(frame: DataFrame, context: SinkContext) -> None:  # noqa: ARG001 - of the contract
        frame.collect()
        if away.pop(0):
            raise SinkUnavailableError("no answer")

    def job(reports: DataStream, output: str) -> None:
        columns = {"id": "string", "aircraft": "string", "delay": "bigint"}
        checked = reports.key_by("id").process(Checked(), output=columns, dead_letters=True).uid("checked")
        refused = FileSink(f"{output}/refused", format="json")
        checked.sink_to(PostgresSink(database, "reports", dead_letters=refused)).uid("table")
        checked.get_dead_letters().sink_to(ForeachBatchSink(fail_at_first)).uid("function")

    retries = Retries(60_000, sleep=lambda _: None, awaited=SinkUnavailableError)
    rig, status = Rig(spark, tmp_path, declared(spark, tmp_path, job), sink_retries=retries), DriverStatus()

    def run(*reports: tuple[str, str | None, int]) -> dict[str, int]:
        outcome = rig.run(list(reports))
        status.committed(
            Commit(batch_id=rig.batch_id, at_ms=1),
            counters=rig.committed.counters,
            input_records=outcome.input_records,
            output_records=outcome.output_records,
            duration_ms=1,
            operators=operator_metrics(outcome.reports, rig.committed.time, 1),
            sinks=sink_metrics(outcome.dead_letters),
        )
        metrics = status.heartbeat().metrics
        assert metrics.counters is not None
        assert metrics.counters.dead_letters == sum(counted(metrics).values())
        return counted(metrics)

    assert run(("a", "N1", 1), ("b", None, 1), ("c", None, 1), ("d", "N1", -1)) == {"checked": 2, "table": 1}
    assert len(away) == 1, "the batch has run three times"
    assert counted_by_function(status.heartbeat().metrics) == {"N1": 2}
    assert run(("e", "N1", 1), ("f", None, 1), ("g", "N2", -1), ("h", "N2", -1)) == {"checked": 3, "table": 3}
    assert spark.read.json(str(tmp_path / "out" / "refused")).count() == 3
    assert counted_by_function(status.heartbeat().metrics) == {"N1": 3, "N2": 2}


@pytest.mark.exhaustive
def test_a_driver_reports_the_dead_letters_of_the_batches_that_it_has_committed(
    tmp_path: Path, database: str, drivers: list[DriverProcess]
) -> None:
    sync = tmp_path / "sync"
    sync.mkdir()

    def started(attempt: int, **environment: str) -> DriverProcess:
        driver = DriverProcess.start(tmp_path / f"driver-{attempt}", artifact=JOB, environment=environment)
        drivers.append(driver)
        checkpoints = CheckpointSettings(interval_ms=600_000)
        driver.assign(
            assignment_of(JOB, tmp_path, attempt, 2, parameters={"database": database}, checkpoints=checkpoints)
        )
        return driver

    def reports(driver: DriverProcess, expected: dict[str, int]) -> bool:
        heartbeat = driver.heartbeat()
        return heartbeat is not None and counted(heartbeat.metrics) == expected

    def orders(*amounts: int | None) -> list[dict[str, int | None]]:
        return [{"id": 10 * len(amounts) + at, "amount": amount} for at, amount in enumerate(amounts)]

    write_files(tmp_path / "in", [orders(1, None, -1, None)])
    first = started(1, **{FAILPOINT: "batch.ran@2", FAILPOINT_DIRECTORY: str(sync)})
    first.wait_for(lambda: reports(first, {"checked": 2, "table": 1}), "the first batch")
    write_files(tmp_path / "in", [orders(None, 2, -1, -1, None, None)])
    first.wait_for(lambda: any(sync.iterdir()), "the second batch before its commit")
    assert reports(first, {"checked": 2, "table": 1}), "it is not committed"
    first.kill()

    second = started(2)
    second.wait_for(lambda: reports(second, {"checked": 3, "table": 2}), "the second batch, once more")
    second.wait_for(lambda: len(sink_rows(tmp_path / "out" / "refused")) == 3, "its dead letters")
    assert len(sink_rows(tmp_path / "out" / "failed")) == 5
