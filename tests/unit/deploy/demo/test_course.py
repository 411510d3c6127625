"""The demo disturbs its job at the right moments, and its verdict needs each disturbance."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.deploy.demo import course as course_module
from keyscale.deploy.demo import demo_job, kill_and_rescale, waiting
from keyscale.deploy.demo import scenario as scenario_module
from keyscale.deploy.demo.course import SCRIPT, Course, Recovery
from keyscale.deploy.demo.demo_job import DemoJob
from keyscale.deploy.demo.errors import DemoError
from keyscale.deploy.demo.kill_and_rescale import FaultsVerdict, KillAndRescale, course_checks, figures_checks
from keyscale.deploy.demo.reference import Check
from keyscale.deploy.demo.reports import plan_deliveries
from keyscale.deploy.demo.scenario import RescaleScenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCENARIO = RescaleScenario(kill_at=0.1, rescales=((0.4, 4), (0.7, 1)), holds=(0.2, 0.6, 0.9), step_timeout_s=55.0)


class Display:
    """Keeps the steps and the counts."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.counts: list[dict[str, int]] = []

    def step(self, words: str) -> None:
        self.steps.append(words)

    def update(self, counts: dict[str, int]) -> None:
        self.counts.append(counts)

    def elapsed_s(self) -> float:
        return float(len(self.steps))


class World:
    """The control plane, the feeder and the job of a course; what is done to them is kept in order."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.rows = 0
        self.has_ended = False
        self.parallelism = 2
        self.ends_as = "COMPLETED"
        self.completed = iter([0, 0, 3])
        self.attempts = iter(
            [
                attempt(1, 40, last_commit_batch_id=5),
                attempt(1, 40, last_commit_batch_id=5),
                attempt(1, 41, last_commit_batch_id=6),
                attempt(1, 41, last_commit_batch_id=6, first_commit_at_ms=900),
                attempt(2, 42, first_commit_at_ms=None),
                attempt(2, 42, first_commit_at_ms=1750, restore_from="s3://b/checkpoints/7/manifest"),
            ]
        )
        self.jobs = SimpleNamespace(rescale=self._rescale)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.done.append(("post", path, body))
        return {"id": "the-job"}

    def _rescale(self, job_id: str, *, parallelism: int) -> SimpleNamespace:
        self.done.append(("rescale", job_id, parallelism))
        return SimpleNamespace(id=f"to {parallelism}")

    def follow(self, given: World, operation_id: str, *, on_poll: Callable[[], None]) -> dict[str, Any]:
        assert given is self
        on_poll()
        before, self.parallelism = self.parallelism, int(operation_id.removeprefix("to "))
        times = {"downtime_ms": 8, "failure": {"code": "X"}}
        return {"from_parallelism": before, "to_parallelism": self.parallelism, "status": self.ends_as, **times}

    def feeder(self, *given: Any) -> Feeder:
        self.done.append(("feeder", *given))
        return Feeder(self)

    def job(self, *given: Any) -> Job:
        self.done.append(("job", *given))
        return Job(self)


def attempt(number: int, pid: int, **columns: Any) -> dict[str, Any]:
    return {"number": number, "pid": pid, "first_commit_at_ms": 1, "restore_from": None, **columns}


class Feeder:
    """Delivers nothing, and has ended at the second look."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._looks = 0

    def __enter__(self) -> Feeder:  # noqa: PYI034 - a stand-in
        return self

    def __exit__(self, *_: object) -> None:
        self._world.done.append(("the feeder ends",))

    @property
    def has_ended(self) -> bool:
        self._looks += 1
        return self._looks > 1

    def delivered(self) -> int:
        return 12

    def allow(self, share: float) -> None:
        self._world.done.append(("allow", share))


class Job:
    """A job whose sink has what a wait wants."""

    id = "the-job"

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self) -> None:
        self._world.done.append(("start",))

    def drain(self) -> None:
        self._world.done.append(("drain",))

    def rows(self) -> int:
        return self._world.rows

    def show(self) -> dict[str, Any]:
        return {"spec": {"parallelism": self._world.parallelism}, "metrics": {"input_records": 9}}

    def attempt(self) -> dict[str, Any]:
        self._world.rows += 1
        return next(self._world.attempts)

    def checkpoints(self) -> dict[str, Any]:
        return {"counts": {"completed": next(self._world.completed)}}

    def wait_for_rows(self, wanted: int) -> None:
        self._world.done.append(("rows", wanted))
        self._world.rows = wanted + 7

    def wait(self, what: str, observe: Callable[[], Any]) -> Any:
        self._world.done.append(("wait", what))
        return next(found for found in iter(observe, object()) if found)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(course_module, "RunningFeeder", made.feeder)
    monkeypatch.setattr(course_module, "DemoJob", made.job)
    monkeypatch.setattr(course_module, "follow", made.follow)
    monkeypatch.setattr(course_module, "now_ms", lambda: made.done.append(("the time",)) or 1000)  # type: ignore[func-returns-value]
    monkeypatch.setattr(course_module.os, "kill", lambda *given: made.done.append(("kill", *given)))
    monkeypatch.setattr(
        course_module, "upload_file", lambda given, file: {"id": f"{given is made} {file.name}", "size_bytes": 1}
    )
    return made


def test_the_driver_is_killed_just_after_a_commit_and_each_rescale_waits_for_its_moment(
    world: World, tmp_path: Path
) -> None:
    display = Display()
    course = Course(cast("Any", world), SCENARIO, tmp_path, 1000, cast("Any", display))
    course.run()
    parameters = {"input": str(tmp_path / "input"), "output": str(tmp_path / "output")}
    body = {"name": "flights", "spec": SCENARIO.specification(f"True {SCRIPT.name}", parameters)}
    assert world.done == [
        ("feeder", tmp_path / "input", SCENARIO, 1000),
        ("post", "/v1/jobs", body),
        ("job", world, "the-job", tmp_path / "output", course._show_counts, 55.0),
        ("start",),
        ("allow", 0.2),
        ("rows", 100),
        ("wait", "a completed checkpoint"),
        ("allow", 0.4),
        ("wait", "a commit"),
        ("kill", 41, signal.SIGKILL),
        ("the time",),
        ("allow", 0.6),
        ("wait", "the job to recover by itself"),
        ("allow", 0.6),
        ("rows", 400),
        ("rescale", "the-job", 4),
        ("allow", 0.9),
        ("rows", 700),
        ("rescale", "the-job", 1),
        ("allow", 1.0),
        ("wait", "the feeder to deliver all reports"),
        ("drain",),
        ("the feeder ends",),
    ]
    assert course.recovery == Recovery(
        killed_attempt=1,
        new_attempt=2,
        restored_from="s3://b/checkpoints/7/manifest",
        rows_before=110,
        downtime_ms=750,
    )
    assert course.rows_before_rescales == [407, 707]
    assert [(each["from_parallelism"], each["to_parallelism"]) for each in course.rescales] == [(2, 4), (4, 1)]
    assert display.counts[-1] == {"files delivered": 12, "reports in the sink": 707}
    assert course.figures() == {"input_records": 9}
    told = [words for words in display.steps if words.startswith(("rescaling", "it recovered"))]
    assert told == [
        "it recovered by itself from 7: first commit 750 ms after the kill",
        "rescaling 2 → 4",
        "rescaling 4 → 1",
    ]


def test_a_rescale_that_does_not_complete_ends_the_demo(world: World, tmp_path: Path) -> None:
    world.ends_as = "ROLLED_BACK"
    course = Course(cast("Any", world), SCENARIO, tmp_path, 1000, cast("Any", Display()))
    with pytest.raises(DemoError, match=r"the rescale 2 -> 4 ended as ROLLED_BACK: .*X"):
        course.run()
    assert world.done[-1] == ("the feeder ends",)
    assert [each["status"] for each in course.rescales] == ["ROLLED_BACK"]


def recovered(**columns: Any) -> Recovery:
    usual = {"killed_attempt": 1, "new_attempt": 2, "restored_from": "here", "rows_before": 5, "downtime_ms": 8}
    return Recovery(**{**usual, **columns})


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, set()),
        (
            {"recovery": None},
            {"drivers killed while reports were coming in", "recoveries from a checkpoint, by itself"},
        ),
        ({"recovery": recovered(rows_before=0)}, {"drivers killed while reports were coming in"}),
        ({"recovery": recovered(rows_before=100)}, {"drivers killed while reports were coming in"}),
        ({"recovery": recovered(restored_from=None)}, {"recoveries from a checkpoint, by itself"}),
        ({"rows_before_rescales": [0, 70]}, {"rescales while reports were coming in"}),
        ({"rows_before_rescales": [40, 100]}, {"rescales while reports were coming in"}),
        ({"rescales": [{"to_parallelism": "1"}, {"to_parallelism": "4"}]}, {"parallelism"}),
        ({"rescales": [{"to_parallelism": "4"}]}, {"parallelism"}),
    ],
)
def test_each_disturbance_has_a_check(changed: dict[str, Any], wrong: set[str]) -> None:
    usual = {
        "scenario": SCENARIO,
        "recovery": recovered(),
        "rows_before_rescales": [1, 99],
        "rescales": [{"to_parallelism": "4"}, {"to_parallelism": "1"}],
    }
    checks = course_checks(cast("Any", SimpleNamespace(**{**usual, **changed})), 100)
    assert {check.name for check in checks if not check.holds} == wrong
    assert checks[-1].expected == "2 → 4 → 1"


def test_the_jobs_own_counters_have_each_delivered_record() -> None:
    scenario = RescaleScenario(files=10, seed=3)
    sent = sum(len(each.first) + len(each.again) for each in plan_deliveries(500, 10, 3))
    assert sent > 500
    for read, emitted, holds in ((sent, 500, [True, True]), (500, 500, [False, True]), (sent, sent, [True, False])):
        checks = figures_checks({"input_records": read, "output_records": emitted}, scenario, 500)
        assert [check.holds for check in checks] == holds


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A course that has been run when the play asks for its facts."""
    reports = [{"report_id": "a"}, {"report_id": "b"}]
    course = SimpleNamespace(
        output="the output",
        recovery=recovered(),
        rescales=["a rescale"],
        figures=lambda: {"a": 1},
        checkpoints=lambda: {"b": 2},
        runs=0,
    )

    def run() -> None:
        course.runs += 1

    def made(*given: Any) -> SimpleNamespace:
        course.given, course.run = given, run
        return course

    def checked(name: str) -> Callable[..., list[Any]]:
        return lambda *given: [(name, course.runs, *given)]

    monkeypatch.setattr(kill_and_rescale, "departure_reports", lambda limit: reports[:limit])
    monkeypatch.setattr(kill_and_rescale, "Course", made)
    monkeypatch.setattr(kill_and_rescale, "read_rows", lambda output: [(output, course.runs)])
    for name in ("compare", "figures_checks", "course_checks"):
        monkeypatch.setattr(kill_and_rescale, name, checked(name))
    return course


def test_the_play_compares_the_output_of_the_whole_course(played: SimpleNamespace, tmp_path: Path) -> None:
    display = Display()
    scenario = RescaleScenario(reports=2)
    verdict = KillAndRescale(scenario).perform(cast("Any", "control plane"), tmp_path, cast("Any", display))
    reports = [{"report_id": "a"}, {"report_id": "b"}]
    assert played.given == ("control plane", scenario, tmp_path, 2, display)
    checks: list[Any] = [
        ("compare", 1, reports, [("the output", 1)]),
        ("figures_checks", 1, {"a": 1}, scenario, 2),
        ("course_checks", 1, played, 2),
    ]
    rescales: list[Any] = ["a rescale"]
    assert verdict == FaultsVerdict(checks, 0.0, {"b": 2}, rescales, played.recovery)
    played.recovery = None
    with pytest.raises(DemoError, match="never killed"):
        KillAndRescale(scenario).perform(cast("Any", None), tmp_path, cast("Any", display))


def test_the_progress_ends_with_all_files_and_all_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kill_and_rescale, scenario_module):
        monkeypatch.setattr(module, "departure_reports", lambda limit: [{}] * limit)
    scenario = RescaleScenario(reports=1500, files=20, seed=5)
    files = len(plan_deliveries(1500, 20, 5))
    assert KillAndRescale(scenario).totals() == {"files delivered": files, "reports in the sink": 1500}


def test_a_specification_has_the_scenarios_settings() -> None:
    scenario = RescaleScenario(checkpoint_interval_ms=700, parallelism=5)
    assert scenario.specification("program", {"input": "in"}) == {
        "artifact_id": "program",
        "parallelism": 5,
        "parameters": {"input": "in"},
        "checkpoints": {"interval_ms": 700, "retained_count": 3},
    }


def test_a_verdict_shows_the_rescales_and_the_recovery() -> None:
    shown: list[str] = []
    console = SimpleNamespace(print=lambda *words, **_: shown.extend(map(str, words)), width=200)
    rescale = {"from_parallelism": 2, "to_parallelism": 4, "phases": [], "duration_ms": 5, "downtime_ms": 6}
    verdict = FaultsVerdict(
        [Check("a", "1", "1", holds=True)],
        1.0,
        {"history": [], "counts": {}},
        [rescale],
        recovered(killed_attempt=7, new_attempt=9, downtime_ms=1500),
    )
    verdict.show_course(cast("Any", console))
    assert "attempt 7 was killed, attempt 9 committed 1.5 s later" in "".join(shown)
    assert "restored from here" in "".join(shown)


class ControlPlane:
    """A control plane with one job, whose states follow each other."""

    def __init__(self, *states: str) -> None:
        self.states = iter(states)
        self.done: list[tuple[str, ...]] = []
        self.jobs = SimpleNamespace(
            start=lambda job_id: self.done.append(("start", job_id)),
            drain=lambda job_id: self.done.append(("drain", job_id)),
        )

    def get(self, path: str) -> dict[str, Any]:
        self.done.append(("get", path))
        state = next(self.states, "RUNNING")
        return {"status": {"state": state, "attempt": {"number": 3}, "failure": None}, "counts": {}}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(waiting.time, "sleep", made.append)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: sum(made))
    return made


def test_a_job_of_the_demo_is_asked_until_it_is_in_its_state(tmp_path: Path, pauses: list[float]) -> None:
    control_plane = ControlPlane("CREATED", "SUBMITTING", "SUBMITTING", "RUNNING")
    polls: list[int] = []
    job = DemoJob(cast("Any", control_plane), "a/b", tmp_path, lambda: polls.append(1), 60.0)
    job.start()
    assert control_plane.done == [("start", "a/b"), *[("get", "/v1/jobs/a%2Fb")] * 4]
    assert (len(polls), len(pauses)) == (2, 1)
    control_plane.done.clear()
    control_plane.states = iter(["STOPPING", "STOPPING", "STOPPING", "FINISHED"])
    job.drain()
    assert control_plane.done == [("drain", "a/b"), *[("get", "/v1/jobs/a%2Fb")] * 4]
    assert job.attempt() == {"number": 3}
    job.checkpoints()
    assert control_plane.done[-1] == ("get", "/v1/jobs/a%2Fb/checkpoints")


def test_a_job_of_the_demo_is_waited_for_within_its_time_and_its_rows_are_counted(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_job.PublishedOutput, "count_rows", lambda output: 10 * len(pauses) if output else 0)
    job = DemoJob(cast("Any", ControlPlane()), "job", tmp_path, lambda: None, 2.05)
    job.wait_for_rows(30)
    assert (len(pauses), job.rows(), job._published._output) == (3, 30, tmp_path)
    with pytest.raises(DemoError, match="waited 2 s for 9,999 reports in the sink; the job is RUNNING"):
        job.wait_for_rows(9999)
    assert len(pauses) == 3 + 21
