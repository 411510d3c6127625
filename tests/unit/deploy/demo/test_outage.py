"""The outage demo counts by itself what it sends, names each wrong row, and draws what has happened."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from keyscale.deploy.demo.outage import generator
from keyscale.deploy.demo.outage.generator import Payments
from keyscale.deploy.demo.outage.outage_play import OutageScenario, OutageVerdict, _Course, output_checks
from keyscale.deploy.demo.outage.timeline import HEIGHT, WIDTH, Sample, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable


class Topic:
    """Takes what a producer sends."""

    def __init__(self, _: dict[str, Any]) -> None:
        self.values: list[dict[str, Any]] = []

    def produce(self, _: str, value: str, key: str) -> None:
        self.values.append(json.loads(value))
        assert self.values[-1]["account"] == key

    def poll(self, _: float) -> None:
        """Delivers nothing: all values arrive with the flush."""

    def flush(self) -> None:
        """Sends all values; each test that needs the moment replaces it."""


@pytest.fixture
def payments(monkeypatch: pytest.MonkeyPatch) -> Payments:
    monkeypatch.setattr(generator, "Producer", Topic)
    made = Payments("none", "payments", 100.0, seed=3)
    for _ in range(500):
        made._send()
    return made


def test_payments_come_again_and_late_and_are_counted_once(payments: Payments) -> None:
    sent = payments._producer.values  # type: ignore[attr-defined] # the topic above
    assert len(sent) == payments.sent == 500
    assert {each["id"] for each in sent} == payments.unique.keys()
    assert 30 < len(sent) - len(payments.unique) < 80
    newest = max(each["at"] for each in sent)
    assert any(newest - each["at"] > 60_000 for each in sent)
    assert payments.counts().total() == len(payments.unique)


def test_the_end_waits_until_every_payment_that_was_sent_is_in_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "Producer", Topic)
    monkeypatch.setattr(generator, "TICK_S", 0.0)
    sent_s = iter([0.0, *[1.0] * 10_000])
    monkeypatch.setattr(generator.time, "monotonic", lambda: next(sent_s, 1.0))
    sending = threading.Event()

    class Slow(Payments):
        def _send(self) -> None:
            sending.set()
            self._ended.wait(10)  # which is then on its way
            if self.sent == 0:
                flushed.wait(0.02)  # a flush that comes too early comes now
            super()._send()

    flushed = threading.Event()
    monkeypatch.setattr(Topic, "flush", lambda topic: (setattr(topic, "flushed", len(topic.values)), flushed.set()))
    with Slow("none", "payments", 40.0, seed=3) as payments:
        assert sending.wait(10)
    topic: Any = payments._producer
    assert topic.flushed == len(topic.values) == payments.sent == 40
    assert {each["id"] for each in topic.values} == payments.unique.keys()


def lose(rows: list[dict[str, Any]]) -> None:
    del rows[7]


def double(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[7])


def count_wrongly(rows: list[dict[str, Any]]) -> None:
    rows[7]["payments"] = rows[7].get("payments", 0) + 1


def count_elsewhere(rows: list[dict[str, Any]]) -> None:
    rows[7]["window_start"] = 5


@pytest.mark.parametrize(
    ("sink", "spoil"),
    [
        ("payments", lose),
        ("payments", double),
        ("counts", lose),
        ("counts", count_wrongly),
        ("counts", count_elsewhere),
    ],
)
def test_a_single_wrong_row_of_a_sink_is_found(
    payments: Payments, tmp_path: Path, sink: str, spoil: Callable[[list[dict[str, Any]]], None]
) -> None:
    sinks: dict[str, list[dict[str, Any]]] = {
        "payments": [{"id": each} for each in payments.unique],
        "counts": [
            {"account": account, "window_start": start, "payments": count}
            for (account, start), count in payments.counts().items()
        ],
    }
    corrected = {**sinks["counts"][0], "payments": 0}  # as before a late payment
    write(tmp_path / "right", {**sinks, "counts": [corrected, *sinks["counts"]]})
    assert all(check.holds for check in output_checks(payments, tmp_path / "right"))
    spoil(sinks[sink])
    write(tmp_path / "wrong", sinks)
    assert not all(check.holds for check in output_checks(payments, tmp_path / "wrong"))


def write(output: Path, sinks: dict[str, list[dict[str, Any]]]) -> None:
    for name, rows in sinks.items():
        (output / name / "batch=0").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), output / name / "batch=0" / "part.parquet")


class Display:
    """Shows nothing; its time is set."""

    now_s = 0.0

    def elapsed_s(self) -> float:
        return self.now_s

    def step(self, words: str) -> None:
        assert words


def test_the_timeline_has_each_change_of_size_and_each_failed_driver(tmp_path: Path) -> None:
    display = Display()
    course = _Course(cast("Any", None), OutageScenario(), tmp_path, cast("Any", display))
    course.timeline, course._begun_s = Timeline("Sizes"), 0.0
    for parallelism, restarts in ((2, 0), (6, 0), (6, 1), (6, 1), (4, 1)):
        job = {
            "status": {"attempt": {"parallelism": parallelism}, "restarts": restarts, "failure": {"code": "BAD"}},
            "metrics": {"lag_records": 7},
        }
        course.job = cast("Any", SimpleNamespace(show=lambda job=job: job))
        course._sample()
        display.now_s += 2
    assert course.timeline.events == [
        (2.0, "scaled out to 6 subtasks"),
        (4.0, "a driver failed: BAD"),
        (8.0, "scaled in to 4 subtasks"),
    ]


def test_the_verdict_says_why_the_job_was_not_scaled() -> None:
    console = Console(file=io.StringIO(), width=200)
    timeline = Timeline("Sizes", [Sample(0.0, 5, 2)], [(9.0, "not scaled, because the sink is slow")])
    verdicts = {"WARMING_UP": "4 batches show it", "SINK_SLOW": "the sinks dominate: 97% of a batch's time"}
    OutageVerdict([], 1.0, timeline, Path("timeline.svg"), verdicts).show_course(console)
    shown = cast("io.StringIO", console.file).getvalue()
    assert "9 s  not scaled, because the sink is slow" in shown
    assert "SINK_SLOW   the sinks dominate: 97% of a batch's time" in shown


def test_the_drawing_shows_the_lag_the_size_the_outage_and_the_events() -> None:
    timeline = Timeline(
        "Lag < size",
        [Sample(0.0, 5, 2), Sample(60.0, None, 2), Sample(90.0, 400, 4), Sample(120.0, 10, 2)],
        [(30.0, "store & job"), (119.0, "the end")],
        (30.0, 60.0),
    )
    assert timeline.peak_lag == 400
    drawn = ET.fromstring(timeline.svg())  # noqa: S314 - our own text
    tags = Counter(each.tag.rpartition("}")[2] for each in drawn.iter())
    assert tags["polyline"] == 2
    texts = {each.text for each in drawn.iter() if each.tag.endswith("text")}
    assert {"Lag < size", "store & job", "the end", "object store away", "2 min", "400"} <= texts
    lag, size = (each.get("points", "").split() for each in drawn.iter() if each.tag.endswith("polyline"))
    assert (len(lag), len(size)) == (3, 6), "an unknown lag is left out, and the size changes in steps"
    for x, y in (point.split(",") for point in (*lag, *size)):
        assert 0 <= float(x) <= WIDTH
        assert 0 <= float(y) <= HEIGHT


@pytest.mark.parametrize(("minutes", "marked"), [(3, [0, 1, 2, 3]), (25, [0, 3, 6, 9, 12, 15, 18, 21, 24])])
def test_the_minutes_of_a_long_drawing_have_room(minutes: int, marked: list[int]) -> None:
    timeline = Timeline("Long", [Sample(0.0, 5, 2), Sample(60.0 * minutes, 5, 2)])
    texts = [each.text or "" for each in ET.fromstring(timeline.svg()).iter()]  # noqa: S314 - our own text
    assert [text for text in texts if text.endswith(" min")] == [f"{minute} min" for minute in marked]


def test_a_drawing_without_samples_is_empty_and_no_error() -> None:
    assert ET.fromstring(Timeline("Nothing").svg()) is not None  # noqa: S314 - our own text
