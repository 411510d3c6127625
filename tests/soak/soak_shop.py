"""The shop job of a soak: its orders, which come all the time, and its plain fold."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from itertools import cycle
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka import Producer

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.errors import ControlPlaneUnreachableError, RefusedError
from keyscale.client.request_paths import job_path
from keyscale.clock import now_ms
from tests.soak.soak_jobs import RESTART, show
from tests.soak.soak_truth import USER_COUNTER
from tests.support.drivers.driver_process import rows_of
from tests.support.repository import ROOT
from tests.support.state.state_dump import dump
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.servers.kafka_broker import Broker

SHOPS = 40
PARTITIONS = 3
WINDOW_MS = 10_000
HOUR_MS = 3_600_000
OUT_OF_ORDER_MS = 3_000
RATES = (0, 5, 30, 30, 30, 30, 60, 150)
"""Orders per second, of which one is chosen every few seconds."""
RECENT = 5_000
WAITING_MAX = 3_000
"""As long as more orders are on their way no more are sent: a busy host may be slower than they come."""
DUPLICATES, LATE, BROKEN = 0.15, 0.03, 0.01
SECONDS = 900.0


class Orders:
    """Sends orders to a topic all the time: duplicates, orders an hour late, and orders without a price among them.

    Args:
        servers: The brokers.
        topic: The topic.
        seed: Chooses the orders.
    """

    def __init__(self, servers: str, topic: str, seed: int) -> None:
        # A producer of this kind writes each order once and in order, also while the broker is away.
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "message.timeout.ms": 3_600_000}
        )
        self._topic = topic
        self._chance = random.Random(seed)
        self._recent: list[tuple[str, int]] = []
        self._begun_ms = now_ms()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.sent = 0
        self.may_be_late = False
        self._received = 0
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        """Sends no more orders until `go_on`; all orders so far are in the topic."""
        self._lock.acquire()
        self._flush()

    def go_on(self) -> None:
        self._lock.release()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._flush()

    def _flush(self) -> None:
        wait_until(lambda: self._producer.flush(1) == 0, SECONDS, what="the brokers' receipt of all orders")

    def _run(self) -> None:
        rate, until = RATES[2], time.monotonic()
        while not self._ended.wait(0.5):
            if time.monotonic() > until:
                rate, until = self._chance.choice(RATES), time.monotonic() + self._chance.uniform(1, 10)
            with self._lock:
                if self.sent - self._received < WAITING_MAX:
                    for _ in range((rate + 1) // 2):
                        self._send()
                self._producer.poll(0)

    def _send(self) -> None:
        if self._recent and self._chance.random() < DUPLICATES:
            value, partition = self._chance.choice(self._recent)
        else:
            value, partition = self._order(), self._chance.randrange(PARTITIONS)
            self._recent.append((value, partition))
            del self._recent[:-RECENT]
        self._producer.produce(self._topic, value, partition=partition)
        self.sent += 1

    def received(self, number: int) -> None:
        """Takes note of how many orders the job has committed."""
        self._received = number

    def _order(self) -> str:
        is_late = self.may_be_late and self._chance.random() < LATE
        at_ms = now_ms() - self._chance.randrange(OUT_OF_ORDER_MS)
        if is_late:
            at_ms = self._begun_ms - HOUR_MS - self._chance.randrange(HOUR_MS)
        order = {
            "id": f"o{self.sent}",
            "shop": f"s{self._chance.randrange(SHOPS)}",
            "cents": -1 if self._chance.random() < BROKEN else self._chance.randrange(1, 10_000),
            "at": at_ms,
        }
        return json.dumps(order)

    def is_late(self, order: dict[str, Any]) -> bool:
        """Whether an order is an hour late; all other orders are on time."""
        return bool(order["at"] < self._begun_ms - OUT_OF_ORDER_MS - HOUR_MS // 2)


class PublishedRows:
    """The rows of a file sink; reads each batch once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._batches: dict[str, list[dict[str, Any]]] = {}

    def read(self) -> list[dict[str, Any]]:
        for batch in self._directory.glob("batch=*"):
            if batch.name not in self._batches:
                self._batches[batch.name] = [row for file in sorted(batch.glob("part-*")) for row in rows_of(file)]
        return [row for batch in self._batches.values() for row in batch]


class ShopUnderFaults:
    """Orders of shops from Kafka, deduplicated: numbered into a table, summed by windows, late ones set aside.

    Each order's number in its shop must be 1, 2, 3, ...; the fold is made of what the broker has at the end.
    """

    SCRIPT = ROOT / "tests" / "support" / "jobs" / "shop_job.py"

    def __init__(self, control_plane: RunningControlPlane, broker: Broker, postgres_url: str, seed: int) -> None:
        self._control_plane = control_plane
        self._modes = cycle(("STANDBY", "LIVE"))
        self.broker = broker
        self._postgres_url = postgres_url
        output = control_plane.home / "data" / "shop"
        self._files = {name: PublishedRows(output / name) for name in ("totals", "late", "dead")}
        self._output = output
        self.topic = broker.create_topic(PARTITIONS)
        self.orders = Orders(broker.servers, self.topic, seed)
        self.id = ""

    def create(self) -> None:
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (shop text, id text, number bigint, place text)")
        artifact = upload_file(self._control_plane.api, self.SCRIPT)
        body = {
            "name": "shop",
            "spec": {
                "artifact_id": artifact["id"],
                "parallelism": 2,
                "parameters": {
                    "servers": self.broker.servers,
                    "topic": self.topic,
                    "output": str(self._output),
                    "max_records_per_batch": "2000",
                },
                "secrets": ["COUNTS"],
                "checkpoints": {"interval_ms": 3000},
                "restart": RESTART,
            },
        }
        self.id = self._control_plane.api.post("/v1/jobs", body)["id"]

    def start(self) -> None:
        self._control_plane.api.post(job_path(self.id, "start"))
        self.orders.start()
        wait_until(lambda: self.records_out() > 0, SECONDS, what="the first orders in the table")
        self.orders.may_be_late = True  # the watermark has passed by now

    def feed(self) -> None:
        """Orders come all the time."""

    def records_out(self) -> int:
        try:
            with psycopg.connect(self._postgres_url, connect_timeout=10) as connection:
                found = connection.execute("SELECT count(*) FROM orders").fetchone()
        except psycopg.OperationalError:  # it starts again
            return 0
        assert found is not None
        return int(found[0])

    def visible_rows(self) -> dict[str, int] | None:
        """Returns how many rows readers of each sink see; None while the database does not answer."""
        numbered = self.records_out()
        files = {name: len(published.read()) for name, published in self._files.items()}
        return {"numbers": numbered, **files} if numbered else None

    def rescale(self) -> str:
        """Asks for another parallelism, of a new driver and of the running one in turns; returns the change's id."""
        mode = {"spec": {"rescale_mode": next(self._modes)}}
        self._control_plane.api.patch(job_path(self.id), mode, if_match="*")
        parallelism = 5 - show(self._control_plane, self.id)["spec"]["parallelism"]
        return str(self._control_plane.api.post(job_path(self.id, "rescale"), {"parallelism": parallelism})["id"])

    def end_of_change(self, change_id: str, seconds: float) -> str:
        """Waits until a change has ended; returns how."""

        def look() -> str:
            try:
                status = self._control_plane.api.get(f"/v1/operations/{change_id}")["status"]
            except (RefusedError, ControlPlaneUnreachableError):
                return ""
            return "" if status == "IN_PROGRESS" else str(status)

        return wait_until(look, seconds, what=f"the end of change {change_id}", poll=1)

    def check_so_far(self) -> None:
        self._check(self._table())

    def check_pause(self, seconds: float) -> None:
        """Has no orders come for a moment, and asserts that all numbers are exactly right then."""
        self.orders.pause()
        try:
            wait_until(lambda: self._differences() == {}, seconds, what="numbers that are exactly right", poll=1)
        except AssertionError as error:
            error.add_note(f"expected and shown: {self._differences()}")
            raise
        finally:
            self.orders.go_on()

    def _differences(self) -> dict[str, tuple[int, int | None]]:
        """Returns each shown number that contradicts the brokers or the sinks."""
        rows = self.visible_rows() or {}
        try:
            shown = show(self._control_plane, self.id)["metrics"]
            of_functions = self._control_plane.api.get(job_path(self.id, "user-metrics"))["user_metrics"]
            shown[USER_COUNTER] = sum(each["value"] for each in of_functions if each["name"] == USER_COUNTER)
        except (RefusedError, ControlPlaneUnreachableError):
            return {"answers": (1, 0)}
        right = {
            "input_records": self.orders.sent,
            "output_records": sum(rows.values()),
            "late_records": rows.get("late", 0),
            "dead_letters": rows.get("dead", 0),
            "lost_records": 0,
            "lag_records": 0,
            USER_COUNTER: rows.get("numbers", 0),
        }
        return {name: (number, shown[name]) for name, number in right.items() if shown[name] != number}

    def check_all(self) -> None:
        self.orders.end()
        wait_until(self._is_drained, 2 * SECONDS, what="the job's end", poll=1)
        sent = [json.loads(message.value() or b"{}") for message in self.broker.messages(self.topic)]
        assert len(sent) == self.orders.sent
        self.unique = {order["id"]: order for order in sent}
        table = self._table()
        self._check(table)
        priced = [order for order in self.unique.values() if order["cents"] >= 0]
        broken = [order["id"] for order in self.unique.values() if order["cents"] < 0]
        assert sorted((order, shop) for shop, order, _, _ in table) == sorted((o["id"], o["shop"]) for o in priced)
        assert sorted(row["id"] for row in self._files["dead"].read()) == sorted(broken)
        late = [order for order in self.unique.values() if self.orders.is_late(order)]
        assert sorted(row["id"] for row in self._files["late"].read()) == sorted(order["id"] for order in late)
        totals = self._files["totals"].read()
        found = {(row["shop"], row["window_start"]): (row["orders"], row["cents"]) for row in totals}
        assert len(found) == len(totals), "a window that was emitted twice"
        assert found == folded(order for order in self.unique.values() if not self.orders.is_late(order))
        assert self._differences() == {}

    def _is_drained(self) -> bool:
        try:
            status = show(self._control_plane, self.id)["status"]["state"]
            if status in {"RUNNING", "RESTARTING"}:  # until a request has been accepted
                self._control_plane.api.post(job_path(self.id, "drain"))
        except (RefusedError, ControlPlaneUnreachableError):
            return False
        return bool(status == "FINISHED")

    def check_state(self, savepoint: str, scratch: Path) -> None:
        seen = [row["key"]["id"] for row in dump(savepoint, "unique", "seen", scratch)]
        assert sorted(seen) == sorted(self.unique)
        numbers = Counter(shop for shop, _, _, _ in self._table())
        state = {row["key"]["shop"]: row["value"] for row in dump(savepoint, "numbers", "number", scratch)}
        assert state == numbers

    def _table(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._postgres_url) as connection:
            return connection.execute("SELECT shop, id, number, place FROM orders").fetchall()

    @staticmethod
    def _check(table: list[tuple[Any, ...]]) -> None:
        numbers: dict[str, list[int]] = {}
        for shop, _, number, _ in table:
            numbers.setdefault(shop, []).append(number)
        assert all(sorted(found) == list(range(1, len(found) + 1)) for found in numbers.values())
        assert len({order for _, order, _, _ in table}) == len(table), "orders that were counted twice"


def folded(orders: Iterable[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns the number of orders and the sum of their prices by shop and beginning of the window."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for order in orders:
        window = order["shop"], order["at"] // WINDOW_MS * WINDOW_MS
        number, cents = found.get(window, (0, 0))
        found[window] = number + 1, cents + order["cents"]
    return found
