"""Observes a job from outside for as long as a soak lasts: its API, series and page beside brokers, log and sinks."""

from __future__ import annotations

import contextlib
import csv
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from playwright.sync_api import Error as BrowserError
from prometheus_client.parser import text_string_to_metric_families

from keyscale.client.errors import ControlPlaneUnreachableError, RefusedError, UnexpectedAnswerError
from keyscale.client.keyscale import Keyscale
from keyscale.client.request_paths import job_path
from keyscale.clock import now_ms
from keyscale.jobs.kafka_client import offset_of
from keyscale.metrics import JOB_COUNTERS, JOB_METRICS
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.log_entries import BatchCommitted, BatchPlanned
from tests.soak.soak_faults import CALM_SECONDS
from tests.soak.soak_shop import PARTITIONS
from tests.soak.soak_truth import COUNTERS, PUBLISHED_MS, RATE_MS, USER_COUNTER, Observation, Truth, judge
from tests.support.servers.browser import Complaints, new_context, running_browser, sign_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.soak.soak_faults import SoakRig
    from tests.soak.soak_shop import ShopUnderFaults

OBSERVE_MS, PAGE_MS = 10_000, 60_000
JUDGED_AFTER_MS = PUBLISHED_MS + 30_000
ANSWER_SECONDS = 5.0
THREAD_SECONDS = 300.0
ROWS = {
    "output_records": ("numbers", "totals", "late", "dead"),
    "late_records": ("late",),
    "dead_letters": ("dead",),
    USER_COUNTER: ("numbers",),
}
"""The sinks whose rows each counter counts."""
PAGE_NAMES = {
    "Records read": "input_records",
    "Emitted": "output_records",
    "Late": "late_records",
    "Dead letters": "dead_letters",
    "Records waiting": "lag_records",
}
SCRAPED = {
    **{metric.job_prometheus: metric.name for metric in JOB_COUNTERS if metric.name in COUNTERS},
    **{metric.prometheus: metric.name for metric in JOB_METRICS if metric.name == "lag_records"},
    f"keyscale_user_{USER_COUNTER}_total": USER_COUNTER,
}
READ_PAGE = """() => document.querySelector('#connection')?.checkVisibility() ? null : Object.fromEntries(
  [...document.querySelectorAll('#figures div, #more-figures div')].map(
    (each) => [each.querySelector('dt').textContent, each.querySelector('dd').firstChild?.textContent]))"""
COLUMNS = (
    "at_ms", "fault", "is_calm", "status", "attempt", "parallelism", "broker_ends", "committed", "waiting",
    "api_waiting", "api_waiting_age_s", "api_rate", "true_rate", "api_input", "api_output", "sink_rows", "api_late",
    "late_rows", "api_dead", "dead_rows", "series_input", "series_waiting", "page_input", "page_waiting", "wrong",
)  # fmt: skip


@dataclass(slots=True)
class Observer:
    """Compares, every ten seconds, what a job's control plane says with what others say.

    Attributes:
        wrong: The numbers that were wrong.
        observations: How many times the control plane has answered.
        pages: How many times the page was read.
    """

    rig: SoakRig
    job: ShopUnderFaults
    table: Path
    report: Callable[[str], None]
    truth: Truth = field(default_factory=Truth)
    wrong: list[str] = field(default_factory=list)
    observations: int = 0
    pages: int = 0
    silent: int = 0
    sign_ins: int = 0
    _plans: dict[int, int] = field(default_factory=dict)
    _position: int = 0
    _seen_ms: int = 0
    _attempt: int | None = None
    _attempt_ms: int = 0
    _pending: list[tuple[Observation, dict[str, Any]]] = field(default_factory=list)
    _newest: dict[str, float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observes in a thread of its own."""
        thread = threading.Thread(target=self._run, name="observer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(THREAD_SECONDS)
        self.check()

    def check(self) -> None:
        """Raises the exception that has ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with (
                running_browser() as browser,
                contextlib.closing(new_context(browser)) as context,
                self.table.open("w", newline="") as file,
            ):
                page, complaints = context.new_page(), Complaints()
                complaints.watch(page)
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                api = Keyscale(connection=self.rig.control_plane.process.connection)
                looked_ms = opened_ms = 0
                while not self._ended.wait(1):
                    self._ask_brokers()
                    self._read_log()
                    if now_ms() - looked_ms >= OBSERVE_MS:
                        looked_ms = now_ms()
                        self._count_rows()
                        shown: dict[str, int] = {}
                        if looked_ms - opened_ms >= PAGE_MS:
                            opened_ms = looked_ms
                            shown = self._read_page(page)
                        self._observe(api, shown)
                        self._judge(writer, looked_ms - JUDGED_AFTER_MS)
                        file.flush()
                self._ask_brokers()
                self._read_log()
                self._count_rows()
                self._judge(writer, now_ms())
                self.wrong += [f"page: {each}" for each in complaints.seen]
                api.close()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._error = error

    def _ask_brokers(self) -> None:
        # A client that has lost its broker may be stuck: a new one for each question.
        admin = AdminClient({"bootstrap.servers": self.job.broker.servers, "log_level": 0})
        asked = {TopicPartition(self.job.topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        with contextlib.suppress(KafkaException):
            answers = admin.list_offsets(asked, request_timeout=ANSWER_SECONDS)
            ends = sum(offset_of(answer, ANSWER_SECONDS + 1) for answer in answers.values())
            self.truth.ends.add(now_ms(), ends)

    def _read_log(self) -> None:
        """Reads the new entries in the copy of the log that the object store's server keeps."""
        with contextlib.suppress(DocumentCorruptError):
            for position, written_ms, entry in self.rig.objects.entries_after(self._position):
                self._position = position
                if isinstance(entry, BatchPlanned):
                    self._plans[entry.batch_id] = _offsets_of(entry)
                elif isinstance(entry, BatchCommitted) and isinstance(entry.counters, JobCounters):
                    reached = self._plans.get(entry.batch_id, -1)
                    reached = self.truth.reached.last if reached < 0 else reached
                    if reached != entry.counters.input_records:
                        self.wrong.append(
                            f"batch {entry.batch_id}: {entry.counters.input_records} read, {reached} offsets"
                        )
                    self.truth.reached.add(written_ms, reached)
                    self.job.orders.received(reached)
                    for name in COUNTERS:
                        self.truth.counted[name].add(written_ms, getattr(entry.counters, name))
                    by_function = sum(int(series.values[0]) for series in entry.counters.user_series)
                    self.truth.counted[USER_COUNTER].add(written_ms, by_function)

    def _count_rows(self) -> None:
        rows = self.job.visible_rows()
        if rows is not None:
            for name, sinks in ROWS.items():
                self.truth.visible[name].add(now_ms(), sum(rows[sink] for sink in sinks))

    def _read_page(self, page: Page) -> dict[str, int]:
        """Returns the numbers on the job's page; none while the page says that the control plane is away."""
        url = f"{self.rig.control_plane.url}/ui/jobs/{self.job.id}"
        try:
            if not page.url.startswith(url):
                self.sign_ins += 1
                sign_in(page, self.rig.control_plane.process.connection)
                page.goto(url, timeout=1000 * ANSWER_SECONDS)
                page.wait_for_selector("#more-figures div", timeout=1000 * ANSWER_SECONDS)
            shown = page.evaluate(READ_PAGE) or {}
        except (BrowserError, httpx.HTTPError, KeyError):  # the control plane is away
            return {}
        texts = {name: shown.get(label) or "" for label, name in PAGE_NAMES.items()}
        found = {name: text.replace(",", "") for name, text in texts.items()}
        self.pages += bool(shown)
        return {name: int(text) for name, text in found.items() if text.isdigit()}

    def _observe(self, api: Keyscale, shown: dict[str, int]) -> None:
        asked_ms, is_calm = now_ms(), self.rig.is_calm()
        try:
            job = api.request("GET", job_path(self.job.id), timeout_s=ANSWER_SECONDS)
            names = [*COUNTERS, "lag_records"]
            query = {"names": names, "from_ms": asked_ms - 60_000}
            series = api.request("GET", job_path(self.job.id, "series"), timeout_s=ANSWER_SECONDS, **query)
            scraped = self._scrape()
        except (RefusedError, ControlPlaneUnreachableError, UnexpectedAnswerError, httpx.HTTPError):
            self.silent += 1
            return
        answered_ms = now_ms()
        figures = job["metrics"]
        self.observations += 1
        attempt = job["status"]["attempt"] or {}
        is_running = job["status"]["state"] == "RUNNING" and figures["input_rate"] is not None
        if attempt.get("number") != self._attempt or not is_running:
            self._attempt, self._attempt_ms = attempt.get("number"), asked_ms
        # A driver that has run for less than a minute has a rate of that time.
        is_calm = is_calm and is_running and asked_ms - self._attempt_ms > 1000 * CALM_SECONDS
        points = [
            (at_ms, series["step_ms"], {name: series["series"][name][index] for name in names})
            for index, at_ms in enumerate(series["at_ms"])
        ]
        steps = tuple(each for each in points if self._seen_ms < each[0] <= asked_ms - 2 * each[1])
        self._seen_ms = max((at_ms for at_ms, _, _ in steps), default=self._seen_ms)
        for name in COUNTERS:
            if figures[name] < self._newest.get(name, 0):
                self.wrong.append(f"{name} has become less: {self._newest[name]}, then {figures[name]}")
            self._newest[name] = figures[name]
        known = {name: next((v[name] for _, _, v in reversed(points) if v[name] is not None), None) for name in names}
        waiting_ms = figures["lag_records_at_ms"]
        row = {
            "at_ms": asked_ms,
            "fault": self.rig.present,
            "is_calm": is_calm,
            "status": job["status"]["state"],
            "attempt": attempt.get("number"),
            "parallelism": job["spec"]["parallelism"],
            "api_waiting": figures["lag_records"],
            "api_waiting_age_s": None if waiting_ms is None else round((answered_ms - waiting_ms) / 1000, 1),
            "api_rate": None if figures["input_rate"] is None else round(figures["input_rate"], 1),
            "api_input": figures["input_records"],
            "api_output": figures["output_records"],
            "api_late": figures["late_records"],
            "api_dead": figures["dead_letters"],
            "series_input": known["input_records"],
            "series_waiting": known["lag_records"],
            "page_input": shown.get("input_records"),
            "page_waiting": shown.get("lag_records"),
        }
        self._pending.append((Observation(asked_ms, answered_ms, is_calm, figures, steps, shown, scraped), row))

    def _scrape(self) -> dict[str, float]:
        """Returns what Prometheus gets of the job, by the names of the metrics."""
        connection = self.rig.control_plane.process.connection
        token = {"Authorization": f"Bearer {connection.token}"}
        answer = httpx.get(f"{connection.url}/metrics", headers=token, timeout=ANSWER_SECONDS, trust_env=False)
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(answer.raise_for_status().text):
            for sample in family.samples:
                if sample.name in SCRAPED and sample.labels["job_id"] == self.job.id:
                    found[SCRAPED[sample.name]] += sample.value
        return dict(found)

    def _judge(self, writer: csv.DictWriter[str], until_ms: int) -> None:
        """Judges the observations for which the truth is known, and writes them into the table."""
        while self._pending and self._pending[0][0].asked_ms <= until_ms:
            seen, row = self._pending.pop(0)
            wrong = judge(seen, self.truth)
            at_ms = seen.asked_ms
            reached = self.truth.reached.before(at_ms)
            truth = {
                "broker_ends": self.truth.ends.before(at_ms),
                "committed": reached,
                "waiting": self.truth.ends.before(at_ms) - reached,
                "true_rate": round(
                    (self.truth.reached.before(at_ms) - self.truth.reached.before(at_ms - RATE_MS)) * 1000 / RATE_MS, 1
                ),
                "sink_rows": self.truth.visible["output_records"].before(at_ms),
                "late_rows": self.truth.visible["late_records"].before(at_ms),
                "dead_rows": self.truth.visible["dead_letters"].before(at_ms),
            }
            writer.writerow({**row, **truth, "wrong": "; ".join(wrong)})
            for each in wrong:
                self.report(f"WRONG at {at_ms} ({row['fault'] or 'no fault'}): {each}")
            self.wrong += [f"{at_ms}: {each}" for each in wrong]


def _offsets_of(plan: BatchPlanned) -> int:
    """Returns the sum of the offsets at which a batch ends; -1 if its plan does not say so.

    Spark numbers the batches with input; the plan has the file of its last one.
    """
    files = {int(path.partition("/")[2]): text for path, text in plan.positions.items() if path.startswith("offsets/")}
    lines = files[max(files)].splitlines() if files else []
    splits = [json.loads(line) for line in lines[2:] if line.startswith("{")]
    ends = [end for document in splits for _, end in document["splits"].values()]
    return sum(end["offset"] for end in ends) if ends else -1
