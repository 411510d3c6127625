"""A job whose topic has lost records fails, and goes on without them when it is started so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale import KafkaSource
from keyscale.jobs.protocol.messages import SourceMetrics
from keyscale.jobs.protocol.source_retention import source_retention
from keyscale.state.documents.source_positions import SourcePositions, decode_positions
from keyscale.vocabulary import DriverState
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.kafka_broker import Broker

pytestmark = pytest.mark.real

JOB = ROOT / "tests" / "support" / "jobs" / "kafka_ids_job.py"


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_records_that_expire_after_a_checkpoint_are_found_by_what_its_job_reports(
    kafka: Broker, tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, [f"a{number}" for number in range(150)])
    kafka.delete_records(topic, 0, before=20)
    driver = DriverProcess.start(tmp_path / "driver", artifact=JOB)
    drivers.append(driver)
    parameters = {"servers": kafka.servers, "topic": topic}
    driver.assign(assignment_of(JOB, tmp_path, 1, 1, parameters=parameters, checkpoints={"interval_ms": 1000}))

    def reported() -> list[SourceMetrics]:
        heartbeat = driver.heartbeat()
        return heartbeat.metrics.sources if heartbeat else []

    def taken() -> list[SourcePositions]:
        found = [decode_positions(file.read_bytes(), "") for file in (tmp_path / "store").rglob("positions-*.json")]
        return [each for each in found if isinstance(each, SourcePositions) and "150," in each.batches[-1].ends[0]]

    [source] = driver.wait_for(reported, "what the source still has")
    split = f"{topic}/0"
    assert [source.earliest[split].offset, len(source.earliest)] == [20, 1]
    checkpoint = driver.wait_for(taken, "a checkpoint after all records")[0]
    ends = checkpoint.batches[-1].ends
    assert source_retention(checkpoint.sources, ends, [source]) == ([], [])

    def waiting() -> int | None:
        heartbeat = driver.heartbeat()
        return heartbeat.metrics.pending_records if heartbeat else None

    driver.wait_for(lambda: waiting() == 0, "the count of the records that wait")
    kafka.send(topic, ["b"] * 50)
    kafka.delete_records(topic, 0, before=151)
    later = SourceMetrics(uid=source.uid, earliest=KafkaSource(kafka.servers, topic).earliest([split]))
    [problem] = source_retention(checkpoint.sources, ends, [later]).problems
    assert f"split {split} begins at 151, and the checkpoint continues at 150" in problem
    driver.end()
