"""A job with a sink of every kind is forked while it runs: each sink of each job has each of its records once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.feeder import write_atomically
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.jobs.sinks.kafka_transactions import markers_topic
from keyscale.jobs.sinks.postgres import MARKERS
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.client.keyscale import Keyscale
    from tests.support.servers.kafka_broker import Broker

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(900)]

SCRIPT = ROOT / "tests" / "support" / "jobs" / "all_sinks_job.py"
KEYS = [f"key-{number}" for number in range(8)]
SECONDS = 300.0


class Systems:
    """The systems and the input that all jobs of a test share."""

    def __init__(self, api: Keyscale, kafka: Broker, database: str, directory: Path) -> None:
        self.api, self.kafka, self.database, self.directory = api, kafka, database, directory
        self.files = 0
        (directory / "input").mkdir()
        self.run("CREATE TABLE written (job text, uid text, batch bigint, key text, id bigint, count bigint)")
        self.run("CREATE TABLE done (job text, uid text, attempt bigint, PRIMARY KEY (job, uid))")

    def run(self, statement: str) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(statement.encode())

    def query(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def writers(self) -> set[str]:
        """The jobs whose function has written rows."""
        return {job for (job,) in self.query("SELECT DISTINCT job FROM written")}

    def targets(self, name: str) -> dict[str, str]:
        """Makes targets of a job's own; returns the parameters that name them."""
        self.run(f"CREATE TABLE counts_{name} (key text, id bigint, count bigint)")
        return {
            "output": str(self.directory / name),
            "table": f"counts_{name}",
            "topic": self.kafka.create_topic(),
        }

    def specification(self, targets: dict[str, str]) -> dict[str, Any]:
        shared = {name: str(self.directory / name) for name in ("input", "staging")}
        return {
            "artifact_id": upload_file(self.api, SCRIPT)["id"],
            "parameters": {"servers": self.kafka.servers, **shared, **targets},
            "secrets": ["COUNTS"],
            "parallelism": 2,
            "max_parallelism": 16,
            "checkpoints": {"interval_ms": 2000},
            "restart": {"type": "none"},
        }

    def deliver(self) -> None:
        """Writes a file with a record of each key."""
        records = [{"key": key, "id": self.files} for key in KEYS]
        write_atomically(self.directory / "input", f"{self.files:04d}.json", records)
        self.files += 1

    @contextmanager
    def input_coming(self) -> Iterator[None]:
        """Delivers a file several times a second, until the end of the block."""
        ended = threading.Event()

        def feed() -> None:
            while not ended.wait(0.4):
                self.deliver()

        feeder = threading.Thread(target=feed, name="feeder")
        feeder.start()
        try:
            yield
        finally:
            ended.set()
            feeder.join()


class SinksJob:
    """A job of the script, and what is in its targets."""

    def __init__(self, systems: Systems, name: str, targets: dict[str, str]) -> None:
        self.systems, self.name, self.targets = systems, name, targets
        self.id = ""

    def act(self, action: str, body: dict[str, Any] | None = None) -> Any:
        return self.systems.api.post(job_path(self.name, action), body)

    def show(self) -> Any:
        return self.systems.api.get(job_path(self.name))

    def runs(self) -> tuple[str, int, int, int]:
        show = self.show()
        return (
            show["status"]["state"],
            show["spec"]["parallelism"],
            show["status"]["attempt"]["number"],
            show["status"]["restarts"],
        )

    def take_savepoint(self, name: str) -> int:
        """Takes a savepoint; returns the number of files whose records are in it."""
        path = f"/v1/operations/{self.act('savepoint', {'id': name})['id']}"
        wait_until(lambda: self.systems.api.get(path)["status"] != "IN_PROGRESS", SECONDS, what="a savepoint")
        history = self.systems.api.get(job_path(self.name, "checkpoints"))["history"]
        [batch] = [each["batch_id"] for each in history if each["savepoint_id"] == name]
        before = [row for row in self.in_files() if row[3] <= batch]
        return len({number for _, number, _, _ in before})

    def in_files(self) -> list[tuple[str, int, int, int]]:
        """The rows of its files, each with its batch."""
        return [
            (row["key"], row["id"], row["count"], int(file.parent.name.removeprefix("batch=")))
            for file in Path(self.targets["output"]).glob("batch=*/part-*")
            for row in pq.ParquetFile(file).read().to_pylist()
        ]

    def rows(self) -> dict[str, list[tuple[str, int, int]]]:
        """The rows in each target."""
        messages = self.systems.kafka.messages(self.targets["topic"])
        in_topic = [json.loads(message.value() or b"") for message in messages]
        return {
            "files": [row[:3] for row in self.in_files()],
            "table": self.systems.query(f"SELECT key, id, count FROM {self.targets['table']}"),  # noqa: S608 - ours
            "topic": [(row["key"], row["id"], row["count"]) for row in in_topic],
            "function": self.systems.query("SELECT key, id, count FROM written WHERE job = %s", self.id),
        }

    def wait_for_all(self, after: int = 0) -> None:
        """Waits until each target has all records of the files so far, and compares every one.

        Args:
            after: The number of files whose records the targets do not have.
        """
        records = Counter((key, number) for key in KEYS for number in range(after, self.systems.files))
        self.wait_for(records.total())
        for sink, rows in self.rows().items():
            assert Counter((key, number) for key, number, _ in rows) == records, sink
            assert Counter((key, count - 1) for key, _, count in rows) == records, sink

    def wait_for(self, rows: int) -> None:
        """Waits until the topic has so many records. It gets those of a batch last: the job names its sink last."""

        def are_there() -> bool:
            failure = self.show()["status"]["failure"]
            assert failure is None, failure
            return len(self.systems.kafka.messages(self.targets["topic"])) >= rows

        wait_until(are_there, SECONDS, what=f"{rows} records in the topic of {self.name}", poll=1.0)

    def marks(self) -> dict[str, set[Any]]:
        """The attempts that have published: by the marker of the table's sink, and by all of the topic's sink."""
        of_table = self.systems.query(f"SELECT attempt, target FROM {MARKERS} WHERE job_id = %s", self.id)  # noqa: S608 - ours
        of_topic = self.systems.kafka.messages(markers_topic(f"{self.id}-topic"))
        return {"table": set(of_table), "topic": {json.loads(each.value() or b"")["attempt"] for each in of_topic}}

    def producers(self) -> dict[str, list[tuple[int, int]]]:
        """The producers of its topic's sink, by transactional id: of the sink as a whole, and of each share."""
        found = self.systems.kafka.transactional_ids()
        return {name: producers for name, producers in found.items() if self.id in name}

    def driver_producers(self) -> list[tuple[int, int]]:
        """The producers of the sink as a whole. Another one is there if another driver has shut the job's out."""
        return self.producers()[f"keyscale-{self.id}-topic"]


@pytest.fixture
def systems(kafka: Broker, postgres_url: str, tmp_path: Path) -> Iterator[Systems]:
    with running_control_plane({f"{JOB_SECRET_PREFIX}COUNTS": postgres_url}) as platform:
        yield Systems(platform.api, kafka, postgres_url, tmp_path)


@pytest.fixture
def original(systems: Systems) -> SinksJob:
    """A job that runs and has written to all of its targets."""
    job = SinksJob(systems, "original", systems.targets("original"))
    systems.deliver()
    job.id = systems.api.post("/v1/jobs", {"name": job.name, "spec": systems.specification(job.targets)})["id"]
    job.act("start")
    job.wait_for_all()
    return job


def test_a_fork_and_its_original_are_exact_in_every_sink_while_both_run(systems: Systems, original: SinksJob) -> None:
    """They share the staging directory, the database with its table of markers, and the function's table."""
    fork = SinksJob(systems, "fork", systems.targets("fork"))
    of_driver = original.driver_producers()
    with systems.input_coming():
        forked_at = original.take_savepoint("here")
        body = {"name": "fork", "spec": {"parallelism": 3, "parameters": fork.targets}, "start": True}
        fork.id = original.act("clone", {**body, "restore_from": {"savepoint_id": "here"}})["id"]
        fork.wait_for(1)
        original.wait_for(len(KEYS) * systems.files)  # it goes on beside the fork
        fork.wait_for(len(KEYS) * (systems.files - forked_at))
    original.wait_for_all()
    fork.wait_for_all(after=forked_at)
    assert (original.runs(), fork.runs()) == (("RUNNING", 2, 1, 0), ("RUNNING", 3, 1, 0))
    assert original.marks() == {"table": {(1, "public.counts_original")}, "topic": {1}}
    assert fork.marks() == {"table": {(1, "public.counts_fork")}, "topic": {1}}
    assert original.driver_producers() == of_driver
    assert systems.writers() == {original.id, fork.id}


def test_a_fork_of_a_fork_is_refused_each_target_of_the_first_job_which_runs_on_untouched(
    systems: Systems, original: SinksJob
) -> None:
    of_driver = original.driver_producers()
    fork = SinksJob(systems, "fork", systems.targets("fork"))
    with systems.input_coming():
        original.take_savepoint("here")
        body = {"name": "fork", "spec": {"parameters": fork.targets}, "start": True}
        fork.id = original.act("clone", {**body, "restore_from": {"savepoint_id": "here"}})["id"]
        fork.wait_for(1)
        fork.take_savepoint("there")
        for uid, parameter in (("files", "output"), ("table", "table"), ("topic", "topic")):
            own = systems.targets(f"same_{uid}")
            refused = SinksJob(systems, f"same_{uid}", {**own, parameter: original.targets[parameter]})
            body = {"name": refused.name, "spec": systems.specification(refused.targets)}
            state = {"restore_from": {"job": "fork", "savepoint_id": "there"}, "claim_mode": "NO_CLAIM"}
            systems.api.post("/v1/jobs", {**body, **state})
            refused.act("start")
            wait_until(
                lambda job=refused: job.show()["status"]["state"] == "FAILED", SECONDS, what="the refusal", poll=1.0
            )
            failure = refused.show()["status"]["failure"]
            assert (failure["code"], failure["operator_uid"]) == ("SINK_TARGET_OCCUPIED", uid)
            assert f"of job {original.id} writes to" in failure["message"]
            original.wait_for(len(KEYS) * systems.files)  # it goes on
    original.wait_for_all()
    assert original.runs() == ("RUNNING", 2, 1, 0)
    assert original.marks() == {"table": {(1, "public.counts_original")}, "topic": {1}}
    assert original.driver_producers() == of_driver
    assert systems.writers() == {original.id, fork.id}, "a fork that is refused writes nothing"
