"""The outage demo counts by itself what it sends, names each wrong row, and draws what has happened."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from keyscale.deploy.demo.outage import generator, outage_play
from keyscale.deploy.demo.outage.generator import Payments
from keyscale.deploy.demo.outage.outage_play import Outage, OutageScenario, OutageVerdict, _Course, output_checks
from keyscale.deploy.demo.outage.timeline import HEIGHT, WIDTH, Sample, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    """Keeps the steps; its time is set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps: list[str] = []

    def elapsed_s(self) -> float:
        return self.now_s

    def step(self, words: str) -> None:
        self.steps.append(words)


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


def test_a_payment_that_is_due_is_sent_at_the_rate_and_a_late_one_is_at_most_minutes_old(
    payments: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "now_ms", lambda: 10_000_000)
    ages_ms = sorted(10_000_000 - payments._new()["at"] for _ in range(1000))
    late = [each for each in ages_ms if each >= generator.OUT_OF_ORDER_MS]
    assert (ages_ms[0] >= 0, ages_ms[-1] < generator.LATE_MS_MAX, 10 < len(late) < 60) == (True, True, True)
    payments.unique = {
        str(number): {"account": account, "at": at_ms}
        for number, (account, at_ms) in enumerate([("a", 59_999), ("a", 60_000), ("a", 119_999), ("b", 60_000)])
    }
    assert payments.counts() == {("a", 0): 1, ("a", 60_000): 2, ("b", 60_000): 1}


class Job:
    """A job whose size and lag follow from the seconds of a display; each poll of a wait takes a second."""

    id = "the-job"

    def __init__(self, course: _Course, display: Display, sizes: dict[float, int], lags: dict[float, int | None]):
        self.course, self.display, self.sizes, self.lags = course, display, sizes, lags
        self.waits: list[tuple[str, float]] = []
        self.restarts = 0

    def show(self) -> dict[str, Any]:
        def present(values: dict[float, Any]) -> Any:
            return values[max(at_s for at_s in values if at_s <= self.display.now_s)]

        return {
            "status": {"attempt": {"parallelism": present(self.sizes)}, "restarts": self.restarts, "failure": None},
            "metrics": {"lag_records": present(self.lags)},
        }

    def wait(self, what: str, observe: Callable[[], object]) -> None:
        for _ in range(500):
            self.course._sample()
            if observe():
                self.waits.append((what, self.display.now_s))
                return
            self.display.now_s += 1
        pytest.fail(f"waited for {what}")


class ControlPlane:
    """Answers with the decisions of an autoscaler, and with an operation in progress until a second."""

    def __init__(self, display: Display, *decisions: dict[str, Any], busy_until_s: float = 0.0) -> None:
        self.display, self.decisions, self.busy_until_s = display, list(decisions), busy_until_s
        self.asked: list[tuple[str, dict[str, str]]] = []

    def get(self, path: str, **query: str) -> dict[str, Any]:
        self.asked.append((path, query))
        if path.endswith("/autoscaler"):
            return {"decision": self.decisions[0] if self.decisions else None}
        return {"operations": ["a rescale"] if self.display.now_s < self.busy_until_s else []}

    def get_list(self, path: str, name: str) -> dict[str, Any]:
        assert (path, name) == ("/v1/jobs/the-job/autoscaler/decisions", "decisions")
        return {"decisions": self.decisions}


def begun_course(
    tmp_path: Path, scenario: OutageScenario, *decisions: dict[str, Any], busy_until_s: float = 0.0, **job: Any
) -> tuple[_Course, Display, Job]:
    """Returns the course of a job that began 100 seconds after the demo."""
    display = Display()
    control_plane = ControlPlane(display, *decisions, busy_until_s=busy_until_s)
    course = _Course(cast("Any", control_plane), scenario, tmp_path, cast("Any", display))
    played = Job(course, display, job.get("sizes", {0.0: 2}), job.get("lags", {0.0: 0}))
    course.timeline, course._begun_s, course.job = Timeline("Played"), 100.0, cast("Any", played)
    display.now_s = 150.0
    return course, display, played


def test_an_outage_ends_after_its_time_and_the_course_when_the_job_has_caught_up_and_is_small_again(
    tmp_path: Path,
) -> None:
    sizes = {0.0: 2, 173.0: 6, 190.0: 4}
    lags = {0.0: 20, 160.0: None, 172.0: 2000, 180.0: 500, 181.0: 499}
    scenario = OutageScenario(rate=100.0, outage_s=20.0, parallelism=2)
    course, display, job = begun_course(tmp_path, scenario, sizes=sizes, lags=lags, busy_until_s=195.0)
    done: list[tuple[str, float]] = []
    s3 = SimpleNamespace(
        go_away=lambda: done.append(("goes away", display.now_s)),
        come_back=lambda: done.append(("comes back", display.now_s)),
    )
    course.lose_store(cast("Any", s3))
    assert done == [("goes away", 150.0), ("comes back", 171.0)]
    assert course.timeline.outage == (50.0, 71.0)
    assert job.waits == [("the end of the outage", 171.0), ("the end of the backlog", 181.0), ("a move down", 195.0)]
    assert course.timeline.events == [
        (50.0, "object store goes away"),
        (71.0, "it is back"),
        (73.0, "scaled out to 6 subtasks"),
        (81.0, "the backlog is gone"),
        (90.0, "scaled in to 4 subtasks"),
    ]
    assert display.steps == [words for _, words in course.timeline.events]
    assert course.timeline.samples[10] == Sample(60.0, None, 2)
    control_plane: Any = course.control_plane
    assert set(map(repr, control_plane.asked)) == {"('/v1/jobs/the-job/operations', {'status': 'IN_PROGRESS'})"}


def test_a_job_that_was_never_larger_has_no_move_down_to_wait_for(tmp_path: Path) -> None:
    scenario = OutageScenario(outage_s=5.0)
    course, _, job = begun_course(tmp_path, scenario, sizes={0.0: 2}, lags={0.0: 3})
    course.lose_store(cast("Any", SimpleNamespace(go_away=lambda: None, come_back=lambda: None)))
    assert [what for what, _ in job.waits] == ["the end of the outage", "the end of the backlog"]


@pytest.mark.parametrize(
    ("verdict", "sizes", "words"),
    [
        ("SINK_SLOW", {0.0: 2}, "not scaled, because the sink is slow"),
        ("STEADY", {0.0: 2}, "not scaled"),
        ("STEADY", {0.0: 2, 155.0: 4}, "scaled"),
    ],
)
def test_a_job_with_a_slow_sink_is_watched_for_its_time(
    tmp_path: Path, verdict: str, sizes: dict[float, int], words: str
) -> None:
    scenario = OutageScenario(sink_ms=15.0, quiet_s=30.0)
    course, _, job = begun_course(tmp_path, scenario, {"verdict": verdict}, sizes=sizes)
    course.watch()
    assert job.waits == [("the end of the time", 181.0)]
    assert course.timeline.events[-1] == (81.0, words)


def decided(verdict: str, parallelism: int, target: int, operation_id: str | None = None) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "message": f"{verdict} to {target}",
        "parallelism": parallelism,
        "target": target,
        "operation_id": operation_id,
    }


OUT, IN = decided("SCALE_UP", 2, 6, "out"), decided("SCALE_DOWN", 6, 2, "in")
SAMPLES = [Sample(50.0, 10, 2), Sample(60.0, 1001, 2), Sample(71.0, None, 2), Sample(80.0, 400, 6)]


@pytest.mark.parametrize(
    ("decisions", "samples", "restarts", "wrong"),
    [
        ([IN, OUT], SAMPLES, 0, set()),
        ([IN, OUT], SAMPLES, 3, {"drivers that failed"}),
        ([IN, OUT], [Sample(60.0, 1000, 2)], 0, {"the outage left a backlog"}),
        ([IN, OUT], [*SAMPLES[:2], Sample(70.9, None, 2)], 0, {"the lag was known in the outage"}),
        ([IN, OUT], [Sample(80.0, 2000, 2)], 0, {"the lag was known in the outage"}),
        ([IN], SAMPLES, 0, {"scaled out by itself"}),
        ([OUT, decided("SCALE_DOWN", 6, 2)], SAMPLES, 0, {"scaled in by itself"}),
    ],
)
def test_each_thing_that_an_outage_should_show_has_a_check(
    tmp_path: Path, decisions: list[dict[str, Any]], samples: list[Sample], restarts: int, wrong: set[str]
) -> None:
    course, _, job = begun_course(tmp_path, OutageScenario(rate=100.0), *decisions)
    course.timeline.samples, course.timeline.outage, job.restarts = samples, (50.0, 71.0), restarts
    assert {check.name for check in course.checks() if not check.holds} == wrong


@pytest.mark.parametrize(
    ("decisions", "restarts", "wrong"),
    [
        ([decided("SINK_SLOW", 2, 2)], 0, set()),
        ([decided("STEADY", 2, 2)], 0, {"the slow sink is named"}),
        ([OUT, decided("SINK_SLOW", 2, 2)], 0, {"moves"}),
        ([decided("SINK_SLOW", 2, 2)], 1, {"drivers that failed"}),
    ],
)
def test_each_thing_that_a_slow_sink_should_show_has_a_check(
    tmp_path: Path, decisions: list[dict[str, Any]], restarts: int, wrong: set[str]
) -> None:
    course, _, job = begun_course(tmp_path, OutageScenario(sink_ms=15.0), *decisions)
    job.restarts = restarts
    assert {check.name for check in course.checks() if not check.holds} == wrong


def test_the_last_words_of_each_verdict_are_in_the_order_of_its_first_use(tmp_path: Path) -> None:
    newest_first = [decided("STEADY", 6, 6), OUT, decided("STEADY", 2, 2), decided("WARMING_UP", 2, 2)]
    course, *_ = begun_course(tmp_path, OutageScenario(), *newest_first)
    assert list(course.verdicts().items()) == [
        ("WARMING_UP", "WARMING_UP to 2"),
        ("STEADY", "STEADY to 6"),
        ("SCALE_UP", "SCALE_UP to 6"),
    ]


def test_a_sample_is_taken_once_a_second_and_a_job_without_an_attempt_has_its_settings_size(tmp_path: Path) -> None:
    course, display, _ = begun_course(tmp_path, OutageScenario())
    job = {"status": {"attempt": None, "restarts": 1, "failure": None}, "spec": {"parallelism": 5}}
    course.job = cast("Any", SimpleNamespace(show=lambda: {**job, "metrics": {"lag_records": None}}))
    for seconds in (0.0, 0.9, 0.1):
        display.now_s += seconds
        course._sample()
    assert course.timeline.samples == [Sample(50.0, None, 5), Sample(51.0, None, 5)]
    assert course.timeline.events == [
        (50.0, "a driver failed: its process ended"),
        (50.0, "scaled out to 5 subtasks"),
    ]


@pytest.mark.parametrize(
    ("sink_ms", "title", "verdict"),
    [
        (0.0, "A job that scales by itself, and an outage of the object store", "STEADY"),
        (15.0, "A job that scales by itself, and a slow sink", "SINK_SLOW"),
    ],
)
def test_the_job_of_the_outage_is_made_and_started_and_the_course_begins_with_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink_ms: float, title: str, verdict: str
) -> None:
    display = Display()
    display.now_s = 30.0
    posted: list[Any] = []
    control_plane = ControlPlane(display, {"verdict": verdict})
    control_plane.post = lambda *request: posted.append(request) or {"id": "the-job"}  # type: ignore[attr-defined, func-returns-value]
    scenario = OutageScenario(
        service_ms=3.0, sink_ms=sink_ms, catch_up_s=12.5, parallelism=3, parallelism_max=9, step_timeout_s=77.0
    )
    course = _Course(cast("Any", control_plane), scenario, tmp_path, cast("Any", display))
    made: list[Any] = []

    class Started(Job):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(course, display, {0.0: 3}, {0.0: 0})

        def start(self) -> None:
            display.now_s += 8.0

    monkeypatch.setattr(outage_play, "upload_file", lambda given, file: {"id": f"{given is control_plane} {file.name}"})
    monkeypatch.setattr(outage_play, "DemoJob", Started)
    course.start("broker:9092")
    assert posted == [
        (
            "/v1/jobs",
            {
                "name": "payments",
                "spec": {
                    "artifact_id": "True payments.py",
                    "parallelism": 3,
                    "parallelism_limit": 9,
                    "parameters": {
                        "servers": "broker:9092",
                        "output": str(tmp_path),
                        "topic": "payments",
                        "service_ms": "3.0",
                        "sink_ms": str(sink_ms),
                    },
                    "checkpoints": {"interval_ms": 10_000, "retained_count": 3},
                    "autoscaler": {"mode": "ACTIVE", "parallelism_min": 3, "catch_up_ms": 12_500},
                },
            },
        )
    ]
    assert made == [(control_plane, "the-job", tmp_path / "payments", course._sample, 77.0)]
    assert course.timeline.title == title
    assert course.timeline.events == [(8.0, "job runs with 3 subtasks"), (8.0, f"the autoscaler says {verdict}")]


def noting(done: list[Any], word: str, result: Any = None) -> Callable[..., Any]:
    """Returns a function that notes its calls, with their arguments."""

    def call(*given: Any) -> Any:
        done.append((word, *given))
        return result

    return call


@pytest.mark.parametrize("sink_ms", [0.0, 15.0])
def test_the_play_stops_payments_before_it_drains_the_job_and_compares_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink_ms: float
) -> None:
    done: list[Any] = []
    display = Display()
    display.elapsed_s = lambda: float(len(done))  # type: ignore[method-assign]
    payments = SimpleNamespace(end=noting(done, "payments end"))
    course = SimpleNamespace(
        timeline=Timeline("Played"),
        job=SimpleNamespace(drain=noting(done, "drain")),
        start=noting(done, "start"),
        watch=noting(done, "watch"),
        lose_store=noting(done, "lose"),
        checks=noting(done, "check", ["of the course"]),
        verdicts=lambda: {"STEADY": "it fits"},
    )

    @contextmanager
    def sent(*given: Any) -> Iterator[SimpleNamespace]:
        done.append(("payments", *given))
        yield payments
        done.append(("the block ends",))

    monkeypatch.setattr(outage_play, "Payments", sent)
    monkeypatch.setattr(outage_play, "_Course", noting(done, "course", course))
    monkeypatch.setattr(outage_play, "output_checks", noting(done, "compare", ["of the output"]))
    scenario = OutageScenario(rate=50.0, sink_ms=sink_ms, seed=4)
    play = Outage(scenario, cast("Any", "the store"), "broker:9092")
    verdict = play.perform(cast("Any", "control plane"), tmp_path, cast("Any", display))
    assert done == [
        ("payments", "broker:9092", "payments", 50.0, 4),
        ("course", "control plane", scenario, tmp_path / "output", display),
        ("start", "broker:9092"),
        ("watch",) if sink_ms else ("lose", "the store"),
        ("payments end",),
        ("drain",),
        ("the block ends",),
        ("compare", payments, tmp_path / "output"),
        ("check",),
    ]
    drawing = tmp_path / "timeline.svg"
    checks: list[Any] = ["of the output", "of the course"]
    assert verdict == OutageVerdict(checks, 7.0, course.timeline, drawing, {"STEADY": "it fits"})
    assert drawing.read_text(encoding="utf-8") == course.timeline.svg()
