"""A job whose topic has lost records fails, and goes on without them when it is started so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol.messages import DriverState
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.kafka_broker import Broker

pytestmark = pytest.mark.spark

JOB = ROOT / "tests" / "support" / "jobs" / "kafka_ids_job.py"


def test_a_job_whose_topic_has_lost_records_fails_and_goes_on_without_them_when_it_is_started_so(
    kafka: Broker, tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    topic = kafka.create_topic()

    def started(attempt: int, *, skip: bool = False) -> DriverProcess:
        driver = DriverProcess.start(tmp_path / f"driver-{attempt}", artifact=JOB)
        drivers.append(driver)
        parameters = {"servers": kafka.servers, "topic": topic}
        driver.assign(assignment_of(JOB, tmp_path, attempt, 1, parameters=parameters, skip_lost_records=skip))
        return driver

    def read() -> set[str]:
        return {row["id"] for row in sink_rows(tmp_path / "out")}

    kafka.send(topic, [f"a{number}" for number in range(150)])
    first = started(1)
    first.wait_for(lambda: len(read()) == 150, "the first records")
    first.kill()
    kafka.send(topic, [f"b{number}" for number in range(300)])
    kafka.delete_records(topic, 0, before=150 + 120)

    second = started(2)
    second.wait_for_exit()
    failed = second.heartbeat()
    assert failed is not None
    assert failed.failure is not None
    assert (failed.state, failed.failure.code) == (DriverState.FAILED, "SOURCE_RECORDS_LOST")
    assert "--skip-lost-records" in failed.failure.advice

    third = started(3, skip=True)
    third.wait_for(lambda: len(read()) == 150 + 180, "the records that are left")
    assert read() == {f"a{number}" for number in range(150)} | {f"b{number}" for number in range(120, 300)}

    def lost() -> int:
        heartbeat = third.heartbeat()
        return heartbeat.metrics.lost_records if heartbeat else 0

    # Spark's progress tells it with the next batch, or with the next look for input.
    third.wait_for(lambda: lost() == 120, "the number of lost records")
