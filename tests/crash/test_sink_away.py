"""A sink's database or brokers go away under a running job and come back: it waits, says so, and goes on by itself."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
import pytest

from keyscale.jobs.protocol.messages import Assignment, DriverMetrics
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.vocabulary import DriverState
from tests.support.drivers.assignments import assignment as new_assignment
from tests.support.drivers.driver_process import DriverProcess
from tests.support.repository import ROOT
from tests.support.servers.kafka_broker import Broker, running_broker
from tests.support.servers.postgres import running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.db.embedded import EmbeddedPostgres

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

JOB = ROOT / "tests" / "support" / "jobs" / "two_sinks_job.py"


@pytest.fixture
def database() -> Iterator[EmbeddedPostgres]:
    with running_postgres() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE counts (key text, id bigint, count bigint)")
        yield server


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running_broker() as running:
        yield running


@dataclass(slots=True)
class Input:
    """Files of records over a few keys, and the rows that must come out of them."""

    directory: Path
    files: int = 0
    keys: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, files: int) -> None:
        for number in range(self.files, self.files + files):
            records = [{"key": f"k{at % 3}", "id": number * 10 + at} for at in range(10)]
            for record in records:
                self.keys[str(record["key"])].append(int(record["id"]))
            staged = self.directory.with_name("next.json")
            staged.write_text("".join(json.dumps(record) + "\n" for record in records))
            staged.rename(self.directory / f"{number:04}.json")
        self.files += files

    @property
    def ids(self) -> list[int]:
        return sorted(number for ids in self.keys.values() for number in ids)


def test_a_job_waits_for_its_sinks_and_goes_on_when_they_are_back(
    tmp_path: Path, database: EmbeddedPostgres, broker: Broker, drivers: list[DriverProcess]
) -> None:
    records = Input(tmp_path / "in")
    records.directory.mkdir()
    records.add(2)
    topic = broker.create_topic()
    driver = DriverProcess.start(
        tmp_path / "driver", artifact=JOB, environment={f"{JOB_SECRET_PREFIX}COUNTS": database.url}
    )
    drivers.append(driver)
    driver.assign(assignment(tmp_path, broker, topic))

    def in_table() -> list[tuple[str, int, int]]:
        with psycopg.connect(database.url) as connection:
            return connection.execute("SELECT key, id, count FROM counts").fetchall()

    driver.wait_for(lambda: len(in_table()) == len(records.ids), "the first batches in the table")
    database.stop()
    records.add(3)
    driver.wait_for(lambda: outage_of(driver) == "table", "the status to name the table", 60)
    database.start()
    driver.wait_for(lambda: len(in_table()) == len(records.ids), "the batches after the outage in the table")
    assert outage_of(driver) is None

    driver.wait_for(lambda: len(broker.values(topic)) == len(records.ids), "the batches in the topic")
    broker.control("stop")
    records.add(3)
    driver.wait_for(lambda: outage_of(driver) == "topic", "the status to name the topic")
    broker.control("start")
    driver.wait_for(lambda: len(broker.values(topic)) == len(records.ids), "the batches after the outage in the topic")
    driver.wait_for(lambda: outage_of(driver) is None, "the status to say that it is back")

    rows = in_table()
    for key, ids in records.keys.items():
        assert sorted(count for of_key, _, count in rows if of_key == key) == list(range(1, len(ids) + 1))
    assert sorted(number for _, number, _ in rows) == records.ids
    in_topic = [json.loads(value) for value in broker.values(topic)]
    assert sorted((row["key"], row["id"], row["count"]) for row in in_topic) == sorted(rows)
    beat = driver.heartbeat()
    assert beat is not None
    assert (beat.state, beat.metrics.failures.count) == (DriverState.RUNNING, 0), "it has waited, not failed"


def outage_of(driver: DriverProcess) -> str | None:
    beat = driver.heartbeat()
    outage = (beat.metrics if beat else DriverMetrics()).sink_outage
    return outage and outage.uid


def assignment(home: Path, broker: Broker, topic: str) -> Assignment:
    return new_assignment(
        job_id="counts",
        job_name="counts",
        attempt=1,
        parallelism=2,
        max_parallelism=16,
        artifact_filename=JOB.name,
        artifact_sha256=hashlib.sha256(JOB.read_bytes()).hexdigest(),
        parameters={
            "input": str(home / "in"),
            "servers": broker.servers,
            "topic": topic,
            "staging": str(home / "staging"),
        },
        store_url=(home / "store").as_uri(),
    )
