"""A job from Kafka is killed, and rescaled twice, in the middle of its input: its counts are exact in every sink."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.jobs.protocol.messages import Assignment, Command, ReservedAttempt
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.jobs.protocol.specification import CheckpointSettings, FixedDelayRestart
from keyscale.vocabulary import CheckpointStatus, CommandKind
from tests.support.drivers.assignments import assignment as new_assignment
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.kafka_broker import Broker

pytestmark = pytest.mark.real

JOB = ROOT / "tests" / "support" / "jobs" / "kafka_job.py"
PARTITIONS = 4
VIEWS = 4_000


class Views:
    """Page views, of which one in ten is delivered twice, in any partition."""

    def __init__(self, kafka: Broker, seed: int) -> None:
        chance = random.Random(seed)
        self._kafka = kafka
        self.servers = kafka.servers
        self.topic = kafka.create_topic(PARTITIONS)
        views = [json.dumps({"id": f"{seed}-{n}", "page": f"p{chance.randrange(20)}"}) for n in range(VIEWS)]
        self.expected = Counter(json.loads(view)["page"] for view in views)
        self._deliveries = views + chance.sample(views, VIEWS // 10)
        chance.shuffle(self._deliveries)

    def send(self, first: float, last: float) -> None:
        """Sends the deliveries between two fractions of them."""
        for partition in range(PARTITIONS):
            part = self._deliveries[int(first * len(self._deliveries)) : int(last * len(self._deliveries))]
            self._kafka.send(self.topic, part[partition::PARTITIONS], partition=partition)


def assigned(
    home: Path, views: Views, counts_topic: str, attempt: int, parallelism: int, *, restore_from: str | None = None
) -> Assignment:
    return new_assignment(
        job_id=f"views-{home.name}",  # the broker serves several tests, and a sink's marker is of one job
        job_name="views",
        attempt=attempt,
        parallelism=parallelism,
        max_parallelism=16,
        artifact_filename="kafka_job.py",
        artifact_sha256=hashlib.sha256(JOB.read_bytes()).hexdigest(),
        parameters={
            "servers": views.servers,
            "topic": views.topic,
            "output": str(home / "out"),
            "counts_topic": counts_topic,
            "staging": str(home / "staging"),
            "max_records_per_batch": "500",
        },
        store_url=(home / "store").as_uri(),
        restore_from=restore_from,
        checkpoints=CheckpointSettings(interval_ms=1000),
        # Spark gives a source's planner ten seconds to start, which a busy machine may need.
        restart=FixedDelayRestart(attempts=3, delay_ms=0),
    )


@pytest.mark.exhaustive
def test_a_job_that_is_killed_and_rescaled_counts_every_view_once(
    kafka: Broker, postgres_url: str, tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    views = Views(kafka, seed=5)
    counts_topic = kafka.create_topic(2)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (page text, id text, count bigint)")
    output = tmp_path / "out"

    def assignment(attempt: int, parallelism: int, restore_from: str | None) -> Assignment:
        return assigned(tmp_path, views, counts_topic, attempt, parallelism, restore_from=restore_from)

    def start(name: str, **environment: str) -> DriverProcess:
        secrets = {f"{JOB_SECRET_PREFIX}COUNTS": postgres_url}
        driver = DriverProcess.start(tmp_path / name, artifact=JOB, environment={**secrets, **environment})
        drivers.append(driver)
        return driver

    def written() -> int:
        return len(sink_rows(output))

    def in_table() -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_url) as connection:
            return connection.execute("SELECT page, id, count FROM counts").fetchall()

    views.send(0, 0.5)
    held = tmp_path / "held"
    held.mkdir()
    # The third batch is committed, and no sink has published it: the next driver has to.
    first = start("first", **{FAILPOINT: "batch.committed@3", FAILPOINT_DIRECTORY: str(held)})
    second = start("second")
    first.assign(assignment(1, 2, None))
    first.wait_for(lambda: any(held.iterdir()), "the third commit")
    first.kill()
    assert 0 < written() < VIEWS // 2, "the driver was killed after the end of its input"

    second.assign(assignment(2, 3, _checkpoint(first)))
    views.send(0.5, 0.75)
    third = start("third")
    second.wait_for(lambda: written() > VIEWS // 2, "output of the second driver")
    command = Command(id="stop", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s")
    second.command(command)
    savepoint = second.result("stop")
    assert savepoint.status == "COMPLETED", savepoint
    assert second.wait_for_exit() == 0, second.log

    third.assign(assignment(3, 1, savepoint.location))
    views.send(0.75, 1)
    third.wait_for(lambda: written() >= VIEWS, "all files")  # the sinks publish a batch one after the other
    third.wait_for(lambda: len(in_table()) >= VIEWS, "the whole table")
    third.wait_for(lambda: len(kafka.messages(counts_topic)) >= VIEWS, "the whole topic")
    third.kill()

    check_sinks(views, output, in_table(), kafka, counts_topic)


@pytest.mark.exhaustive
def test_a_job_that_rescales_itself_counts_every_view_once(
    kafka: Broker, postgres_url: str, tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    views = Views(kafka, seed=6)
    counts_topic = kafka.create_topic(2)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (page text, id text, count bigint)")
    output = tmp_path / "out"
    secrets = {f"{JOB_SECRET_PREFIX}COUNTS": postgres_url}
    driver = DriverProcess.start(tmp_path / "only", artifact=JOB, environment=secrets, cores=5)
    drivers.append(driver)
    driver.assign(assigned(tmp_path, views, counts_topic, 1, 2))
    for part, (attempt, parallelism) in enumerate(((2, 4), (3, 1))):
        views.send(part / 3, (part + 1) / 3)
        before = len(sink_rows(output))
        driver.wait_for(lambda: len(sink_rows(output)) > before, "some output")  # noqa: B023
        given = assigned(tmp_path, views, counts_topic, attempt, parallelism)
        reserved = ReservedAttempt(token="token", assignment=given)  # noqa: S106 - files ask for none
        driver.command(Command(id=f"to-{parallelism}", kind=CommandKind.RESCALE, next_attempt=reserved))
        result = driver.result(f"to-{parallelism}")
        assert (result.status, result.failure) == ("COMPLETED", None)
    views.send(2 / 3, 1)

    def in_table() -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_url) as connection:
            return connection.execute("SELECT page, id, count FROM counts").fetchall()

    driver.wait_for(lambda: len(sink_rows(output)) >= VIEWS, "all files")
    driver.wait_for(lambda: len(in_table()) >= VIEWS, "the whole table")
    driver.wait_for(lambda: len(kafka.messages(counts_topic)) >= VIEWS, "the whole topic")
    driver.kill()
    check_sinks(views, output, in_table(), kafka, counts_topic)


def check_sinks(views: Views, output: Path, in_table: list[tuple[Any, ...]], kafka: Broker, counts_topic: str) -> None:
    """Each sink has each count once, and all sinks have the same rows."""
    rows = sink_rows(output)
    assert len(rows) == VIEWS
    for page, expected in views.expected.items():
        assert sorted(row["count"] for row in rows if row["page"] == page) == list(range(1, expected + 1))
    in_files = sorted((row["page"], row["id"], row["count"]) for row in rows)
    assert sorted(in_table) == in_files
    in_topic = [json.loads(message.value() or b"") for message in kafka.messages(counts_topic)]
    assert sorted((row["page"], row["id"], row["count"]) for row in in_topic) == in_files


def _checkpoint(driver: DriverProcess) -> str | None:
    completed = [report for report in driver.checkpoints() if report.status is CheckpointStatus.COMPLETED]
    return completed[-1].external_path if completed else None
