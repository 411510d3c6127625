"""The jobs of a soak, each with its input, which grows, and its oracle."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.published_output import read_rows
from keyscale.deploy.demo.reference import fold
from tests.support.control_plane.flights_job import FlightsJob
from tests.support.drivers.driver_process import sink_rows
from tests.support.repository import ROOT
from tests.support.state.state_dump import dump
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.servers.kafka_broker import Broker

RESTART = {"type": "exponential-delay", "max_backoff_ms": 5_000}
DELIVERIES_AT_ONCE = 3
DELIVERIES_PER_MINUTE = 45  # five faults' worth
REPORTS_PER_DELIVERY = 20
PAGES = 40
PARTITIONS = 3
VIEWS_AT_ONCE = 120


class SoakJob(Protocol):
    """A job under faults."""

    id: str

    def create(self) -> None: ...

    def start(self) -> None: ...

    def feed(self) -> None:
        """Gives it some more input."""

    def records_out(self) -> int:
        """Returns how many records it has emitted so far."""

    def check_so_far(self) -> None:
        """Asserts that nothing of what it has emitted is there twice, or wrong."""

    def check_all(self) -> None:
        """Has it drained, and asserts that its output is exactly right."""

    def check_state(self, savepoint: str, scratch: Path) -> None:
        """Asserts that the state in its last savepoint is exactly right, key by key."""


def show(control_plane: RunningControlPlane, job_id: str) -> Any:
    return control_plane.api.get(job_path(job_id))


class FlightsUnderFaults:
    """The flights example: deduplication, then running totals per aircraft."""

    def __init__(self, control_plane: RunningControlPlane, minutes: float) -> None:
        deliveries = 60 + int(minutes * DELIVERIES_PER_MINUTE)
        self._job = FlightsJob(control_plane, reports=deliveries * REPORTS_PER_DELIVERY, files=deliveries)
        self.id = ""

    def create(self) -> None:
        self._job.create(parallelism=2, restart=RESTART)
        self.id = self._job.id

    def start(self) -> None:
        self._job.start()

    def feed(self) -> None:
        self._job.deliver(DELIVERIES_AT_ONCE)

    def records_out(self) -> int:
        return self._job.rows_in_sink()

    def check_so_far(self) -> None:
        emitted = Counter(row["report_id"] for row in read_rows(self._job.output))
        assert [report for report, times in emitted.items() if times > 1] == [], "reports that were emitted twice"

    def check_all(self) -> None:
        self._job.drain()
        wrong = self._job.wrong_checks()
        assert wrong == [], wrong

    def check_state(self, savepoint: str, scratch: Path) -> None:
        reports = self._job.delivered_reports()
        seen = [row["key"]["report_id"] for row in dump(savepoint, "unique-reports", "seen", scratch)]
        assert sorted(seen) == sorted(report["report_id"] for report in reports)

        def totals(state: str) -> list[tuple[Any, ...]]:
            entries = dump(savepoint, "aircraft-totals", state, scratch)
            return sorted(((row["key"]["tailnum"], row.get("map_key"), row["value"]) for row in entries), key=repr)

        def expected(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
            return sorted(found, key=repr)

        reference = fold(reports)
        for name in ("flights", "dep_delay_sum", "last_airport"):
            right = ((tailnum, None, getattr(aircraft, name)) for tailnum, aircraft in reference.items())
            assert totals(name) == expected(right), name
        assert totals("flights_by_dest") == expected(
            (tailnum, dest, count)
            for tailnum, aircraft in reference.items()
            for dest, count in aircraft.by_dest.items()
        )


class ViewsUnderFaults:
    """Page views from Kafka, deduplicated and numbered per page, to files, a table and another topic.

    The numbers of a page must be 1, 2, 3, ...: a view that is lost or counted twice leaves a gap or a repetition, which
    sums might hide.
    """

    SCRIPT = ROOT / "tests" / "support" / "jobs" / "kafka_job.py"

    def __init__(self, control_plane: RunningControlPlane, broker: Broker, postgres_url: str, seed: int) -> None:
        self._control_plane = control_plane
        self._broker = broker
        self._postgres_url = postgres_url
        self._output = control_plane.home / "data" / "views"
        self._chance = random.Random(seed)
        self._sent: list[str] = []
        self.id = ""

    def create(self) -> None:
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            connection.execute("CREATE TABLE counts (page text, id text, count bigint)")
        self._views = self._broker.create_topic(PARTITIONS)
        self._counts = self._broker.create_topic(2)
        artifact = upload_file(self._control_plane.api, self.SCRIPT)
        body = {
            "name": "views",
            "spec": {
                "artifact_id": artifact["id"],
                "parallelism": 2,
                "parameters": {
                    "servers": self._broker.servers,
                    "topic": self._views,
                    "output": str(self._output),
                    "counts_topic": self._counts,
                    "staging": str(self._control_plane.home / "data" / "staging"),
                    "max_records_per_batch": "500",
                },
                "secrets": ["COUNTS"],
                "checkpoints": {"interval_ms": 1000},
                "restart": RESTART,
            },
        }
        self.id = self._control_plane.api.post("/v1/jobs", body)["id"]

    def start(self) -> None:
        self._control_plane.api.post(job_path(self.id, "start"))

    def feed(self) -> None:
        first = len(self._sent)
        views = [
            json.dumps({"id": f"v{number}", "page": f"p{self._chance.randrange(PAGES)}"})
            for number in range(first, first + VIEWS_AT_ONCE)
        ]
        self._sent += views
        deliveries = views + self._chance.choices(self._sent, k=VIEWS_AT_ONCE // 5)
        self._chance.shuffle(deliveries)
        for partition in range(PARTITIONS):
            self._broker.send(self._views, deliveries[partition::PARTITIONS], partition=partition)

    def records_out(self) -> int:
        return len(self._table())

    def check_so_far(self) -> None:
        self._check(self._table())

    def check_all(self) -> None:
        self._control_plane.api.post(job_path(self.id, "drain"))
        wait_until(
            lambda: show(self._control_plane, self.id)["status"]["state"] == "FINISHED", 600, what="the end of the job"
        )
        table = self._table()
        self._check(table)
        sent = sorted((view["id"], view["page"]) for view in map(json.loads, self._sent))
        assert sorted((view, page) for page, view, _ in table) == sent
        assert sorted((row["page"], row["id"], row["count"]) for row in sink_rows(self._output)) == sorted(table)
        published = [json.loads(message.value() or b"{}") for message in self._broker.messages(self._counts)]
        assert sorted((row["page"], row["id"], row["count"]) for row in published) == sorted(table)
        in_order: dict[str, list[int]] = {}
        for row in published:
            in_order.setdefault(row["page"], []).append(row["count"])
        assert all(counts == sorted(counts) for counts in in_order.values()), "views out of order in the topic"

    def check_state(self, savepoint: str, scratch: Path) -> None:
        seen = [row["key"]["id"] for row in dump(savepoint, "unique", "seen", scratch)]
        assert sorted(seen) == sorted(json.loads(view)["id"] for view in self._sent)
        counts: dict[str, int] = {}
        chains: dict[str, str | None] = {}
        for page, view, count in sorted(self._table(), key=lambda row: (row[0], row[2])):
            counts[page] = count
            chains[page] = hashlib.sha256(f"{chains.get(page)} {view}".encode()).hexdigest()
        for state, right in (("count", counts), ("chain", chains)):
            found = {row["key"]["page"]: row["value"] for row in dump(savepoint, "count", state, scratch)}
            assert found == right, state

    def _table(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._postgres_url) as connection:
            return connection.execute("SELECT page, id, count FROM counts").fetchall()

    @staticmethod
    def _check(table: list[tuple[Any, ...]]) -> None:
        numbers: dict[str, list[int]] = {}
        for page, _, count in table:
            numbers.setdefault(page, []).append(count)
        assert all(sorted(found) == list(range(1, len(found) + 1)) for found in numbers.values())
        assert len({view for _, view, _ in table}) == len(table), "views that were counted twice"
