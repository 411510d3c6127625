"""The autoscaler reads the spans of time that its facts need, and wakes the reconciler once a move is stored."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.autoscaling import autoscaler
from keyscale.api.autoscaling.autoscaler import Autoscaler
from keyscale.api.autoscaling.decision import REMEMBERED_MS, Decision
from keyscale.api.autoscaling.facts import Effect
from keyscale.api.autoscaling.observation import PEAK_MS, RATE_MS
from keyscale.api.errors import JobStatusConflictError
from keyscale.db.models import Attempt, Job
from keyscale.db.repositories.scaling import PastDecision, ScaledJob
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import AttemptStage, JobStatus, OperationStatus, ScalingOutcome, ScalingVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
NOW_MS = 20_000 * DAY_MS + 5 * HOUR_MS
SPEC = JobSpec(artifact_id="a", autoscaler={"mode": "ACTIVE", "parallelism_max": 8}).given()
SEEN = ScaledJob("job", "flights", JobStatus.RUNNING, 3, 128, SPEC, None, None, 2, 8, "RUNNING", NOW_MS, NOW_MS, {})
MOVE = Decision(ScalingVerdict.SCALE_UP, 2, 4, "it is busy")


class World:
    """A job with an autoscaler, and the steps of a look in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        self.refusal: Exception | None = None
        self.decision = MOVE
        self.past: list[PastDecision] = []
        wakeup = SimpleNamespace(ring=lambda: self.steps.append("rung"))
        metrics = SimpleNamespace(count=lambda *what: self.steps.append(("counted", *what)))
        limits = SimpleNamespace(job_limits=SimpleNamespace(parallelism_max=64))
        self.scaler = Autoscaler.__new__(Autoscaler)
        self.scaler._context = SimpleNamespace(wakeup=wakeup, metrics=metrics, settings=limits)  # type: ignore[assignment]
        for name, found in (("scaled_jobs", [SEEN]), ("loads", {}), ("recent", {"job": self.past}), ("core_ms", {})):
            monkeypatch.setattr(autoscaler.scaling, name, self._query(name, found))
        monkeypatch.setattr(autoscaler.scaling, "record", lambda _, row: self.steps.append(row))
        for name in ("settle", "confirm"):
            monkeypatch.setattr(autoscaler.scaling, name, self._change(name))
        monkeypatch.setattr(autoscaler, "division_by_size", lambda *_: None)
        monkeypatch.setattr(autoscaler, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(autoscaler, "decide", lambda _: self.decision)
        monkeypatch.setattr(autoscaler, "begin_rescale", self._begin_rescale)
        monkeypatch.setattr(autoscaler.jobs, "lock", lambda _, job_id: Job(id=job_id, revision=3))
        monkeypatch.setattr(autoscaler.attempts, "of_stage", lambda *_: None)
        monkeypatch.setattr(autoscaler.events, "record", self._record)

    def _record(self, *_: Any, kind: str, **event: Any) -> None:
        self.steps.append((kind, event["message"], event["operation_id"]) if kind == "SCALING_MEASURED" else kind)

    def _query(self, name: str, found: Any) -> Any:
        def query(_: Any, *asked: Any) -> Any:
            self.steps.append((name, *asked))
            return found

        return query

    def _change(self, name: str) -> Any:
        return lambda _, *key, **columns: self.steps.append((name, *key, *([columns["message"]] if columns else [])))

    def _begin_rescale(self, *given: Any, message: str) -> Any:
        self.steps.append(("rescale", given[-1], message))
        if self.refusal is not None:
            raise self.refusal
        return SimpleNamespace(id="o")

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        yield None
        self.steps.append("committed")

    def look(self) -> list[Any]:
        leadership: Any = self
        self.scaler.poll(leadership)
        return [
            (each.verdict, each.target, each.operation_id, each.advice) if hasattr(each, "verdict") else each
            for each in self.steps
        ]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


READ = [
    ("scaled_jobs",),
    ("loads", ["job"], NOW_MS - PEAK_MS - RATE_MS),
    ("recent", ["job"], NOW_MS - REMEMBERED_MS),
    ("core_ms", ["job"], NOW_MS - 5 * HOUR_MS, NOW_MS),
    "committed",
]


def test_a_move_is_stored_with_its_rescale_before_the_reconciler_is_woken(world: World) -> None:
    assert world.look() == [
        *READ,
        ("rescale", 4, "autoscaler: it is busy"),
        (ScalingVerdict.SCALE_UP, 4, "o", None),
        "SCALING_DECIDED",
        "committed",
        ("counted", "autoscaler_moves", ScalingVerdict.SCALE_UP),
        "rung",
    ]


def test_a_move_that_is_refused_is_advice_and_wakes_nothing(world: World) -> None:
    world.refusal = JobStatusConflictError("the job is being changed")
    assert world.look() == [
        *READ,
        ("rescale", 4, "autoscaler: it is busy"),
        (ScalingVerdict.SCALE_UP, 4, None, f"The rescale was refused: {world.refusal}"),
        "SCALING_DECIDED",
        "committed",
    ]


def test_a_decision_without_a_move_is_stored_alone(world: World) -> None:
    world.decision = Decision(ScalingVerdict.STEADY, 2, 2, "enough")
    assert world.look() == [*READ, (ScalingVerdict.STEADY, 2, None, None), "committed"]


def test_each_job_is_decided_by_its_own_rows_and_a_defect_of_one_keeps_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    followed: list[Any] = []
    moved = past(MOVE.verdict, ScalingOutcome.PENDING)
    known = {
        "first": [moved],
        "wrong": [],
        "moving": [moved._replace(operation_status=OperationStatus.IN_PROGRESS)],
    }
    rows: dict[str, Any] = {
        "scaled_jobs": [SEEN._replace(id=name) for name in ("moving", "wrong", "first", "second")],
        "loads": {"first": ["load"]},
        "recent": known,
        "core_ms": {"first": 11, "second": 12},
    }
    for name, found in rows.items():
        monkeypatch.setattr(autoscaler.scaling, name, lambda *_, found=found: found)
    monkeypatch.setattr(autoscaler, "division_by_size", lambda _, job: f"division of {job.id}")

    def facts_of(job: ScaledJob, *of: Any, **more: Any) -> str:
        asked.append((job.id, *of, more))
        if job.id == "wrong":
            raise ValueError("no such report")
        return f"facts of {job.id}"

    monkeypatch.setattr(autoscaler, "facts_of", facts_of)
    monkeypatch.setattr(Autoscaler, "_follow", lambda _, leader, job, *of: followed.append((leader, job.id, *of)))
    world.scaler.poll(cast("Any", world))

    def more(name: str, core_ms: int) -> dict[str, Any]:
        return {"core_ms": core_ms, "parallelism_max": 64, "at_ms": NOW_MS, "division": f"division of {name}"}

    assert asked == [
        ("wrong", (), [], more("wrong", 0)),
        ("first", ["load"], [moved], more("first", 11)),
        ("second", (), (), more("second", 12)),
    ]
    assert followed == [(world, "first", "facts of first", [moved]), (world, "second", "facts of second", ())]


def past(verdict: ScalingVerdict, outcome: ScalingOutcome | None = None, **changed: Any) -> PastDecision:
    move = None if outcome is None else "moved"
    known = PastDecision(5, verdict, 2, 4, NOW_MS - 20_000, 900, 8.0, 4.0, outcome, move, None, None)
    return known._replace(**changed)


STEADY = Decision(ScalingVerdict.STEADY, 2, 2, "enough")
LIMITED = Decision(ScalingVerdict.SOURCE_LIMITED, 2, 2, "no more splits")


@pytest.mark.parametrize(
    ("decision", "before", "expected"),
    [
        (LIMITED, [], [(ScalingVerdict.SOURCE_LIMITED, 2, None, None), "SCALING_DECIDED"]),
        (LIMITED, [past(LIMITED.verdict, target=2)], [("confirm", 5, NOW_MS, "no more splits")]),
        (
            LIMITED,
            [past(STEADY.verdict, target=2), past(LIMITED.verdict, target=2)],
            [(LIMITED.verdict, 2, None, None)],
        ),
        (LIMITED, [past(LIMITED.verdict, target=3)], [(LIMITED.verdict, 2, None, None), "SCALING_DECIDED"]),
        (STEADY, [past(STEADY.verdict, target=2, parallelism=3)], [(STEADY.verdict, 2, None, None)]),
        (STEADY, [past(STEADY.verdict, target=2)], [("confirm", 5, NOW_MS, "enough")]),
    ],
    ids=["new", "confirmed", "told before", "of another target", "of another parallelism", "quiet"],
)
def test_a_decision_that_repeats_itself_is_confirmed_and_told_once(
    world: World, decision: Decision, before: list[PastDecision], expected: list[Any]
) -> None:
    world.decision = decision
    world.past.extend(before)
    assert world.look() == [*READ, *expected, "committed"]


PRESENT = Effect(1234.56789, 0.5, 8.0)


@pytest.mark.parametrize(
    ("move", "outcome", "expected"),
    [
        (past(MOVE.verdict, ScalingOutcome.PENDING), None, []),
        (
            past(MOVE.verdict, ScalingOutcome.PENDING),
            ScalingOutcome.NOT_DELIVERED,
            [
                (
                    "settle",
                    5,
                    ScalingOutcome.NOT_DELIVERED,
                    {"capacity": 1234.5679, "utilization": 0.5, "work_ms": 8.0},
                ),
                (
                    "SCALING_MEASURED",
                    "the move from 2 to 4: not delivered; the job can process 1,235 records per second",
                    "moved",
                ),
            ],
        ),
        (
            past(MOVE.verdict, ScalingOutcome.PENDING, operation_status=OperationStatus.ROLLED_BACK),
            ScalingOutcome.DELIVERED,
            [
                ("settle", 5, ScalingOutcome.FAILED, None),
                ("SCALING_MEASURED", "the move from 2 to 4: failed", "moved"),
            ],
        ),
        (past(MOVE.verdict, ScalingOutcome.DELIVERED), ScalingOutcome.DELIVERED, []),
    ],
    ids=["too early", "measured", "rolled back", "settled before"],
)
def test_a_move_gets_its_outcome_once(
    world: World, move: PastDecision, outcome: ScalingOutcome | None, expected: list[Any]
) -> None:
    world.decision = replace(STEADY, present=PRESENT, outcome=outcome)
    world.past.append(move)
    assert world.look() == [*READ, *expected, (STEADY.verdict, 2, None, None), "committed"]


SLEEP = Decision(ScalingVerdict.SLEEP, 2, 2, "no input")


@pytest.mark.parametrize(
    ("decision", "mode", "driver_state", "requested_at_ms", "expected"),
    [
        (SLEEP, "ACTIVE", "RUNNING", None, NOW_MS),
        (SLEEP, "ACTIVE", "RUNNING", 5, 5),
        (SLEEP, "MONITORING", "RUNNING", None, None),
        (SLEEP, "MONITORING", "RUNNING", 5, None),
        (STEADY, "ACTIVE", "RUNNING", None, None),
        (STEADY, "ACTIVE", "RUNNING", 5, None),
        (STEADY, "ACTIVE", "SLEEPING", 5, 5),
        (SLEEP, "ACTIVE", "SLEEPING", None, None),
    ],
)
def test_a_driver_shall_sleep_while_an_active_autoscaler_wants_it(  # noqa: PLR0917
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    decision: Decision,
    mode: str,
    driver_state: str,
    requested_at_ms: int | None,
    expected: int | None,
) -> None:
    world.decision = decision
    active = Attempt(driver_state=driver_state, sleep_requested_at_ms=requested_at_ms)
    monkeypatch.setattr(autoscaler.attempts, "of_stage", lambda *of: {("job", AttemptStage.ACTIVE): active}[of[1:]])
    spec = JobSpec(artifact_id="a", autoscaler={"mode": mode}).given()
    monkeypatch.setattr(autoscaler.scaling, "scaled_jobs", lambda _: [SEEN._replace(spec=spec)])
    world.look()
    assert active.sleep_requested_at_ms == expected


def test_a_confirmed_decision_still_tells_an_idle_job_to_sleep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.decision = SLEEP
    world.past.append(past(SLEEP.verdict, target=2))
    active = Attempt(driver_state="RUNNING")  # since a restart after the first such decision
    monkeypatch.setattr(autoscaler.attempts, "of_stage", lambda *_: active)
    assert world.look() == [*READ, ("confirm", 5, NOW_MS, "no input"), "committed"]
    assert active.sleep_requested_at_ms == NOW_MS
