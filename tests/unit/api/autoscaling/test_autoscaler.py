"""The autoscaler reads the spans of time that its facts need, and wakes the reconciler once a move is stored."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.autoscaling import autoscaler
from keyscale.api.autoscaling.autoscaler import Autoscaler
from keyscale.api.autoscaling.decision import REMEMBERED_MS, Decision
from keyscale.api.autoscaling.observation import PEAK_MS, RATE_MS
from keyscale.api.errors import JobStatusConflictError
from keyscale.db.models import Job
from keyscale.db.repositories.scaling import ScaledJob
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import JobStatus, ScalingVerdict

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
        wakeup = SimpleNamespace(ring=lambda: self.steps.append("rung"))
        metrics = SimpleNamespace(count=lambda *what: self.steps.append(("counted", *what)))
        limits = SimpleNamespace(job_limits=SimpleNamespace(parallelism_max=64))
        self.scaler = Autoscaler.__new__(Autoscaler)
        self.scaler._context = SimpleNamespace(wakeup=wakeup, metrics=metrics, settings=limits)  # type: ignore[assignment]
        for name, found in (("scaled_jobs", [SEEN]), ("loads", {}), ("recent", {}), ("core_ms", {})):
            monkeypatch.setattr(autoscaler.scaling, name, self._query(name, found))
        monkeypatch.setattr(autoscaler.scaling, "record", lambda _, row: self.steps.append(row))
        monkeypatch.setattr(autoscaler, "division_by_size", lambda *_: None)
        monkeypatch.setattr(autoscaler, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(autoscaler, "decide", lambda _: self.decision)
        monkeypatch.setattr(autoscaler, "begin_rescale", self._begin_rescale)
        monkeypatch.setattr(autoscaler.jobs, "lock", lambda _, job_id: Job(id=job_id, revision=3))
        monkeypatch.setattr(autoscaler.attempts, "of_stage", lambda *_: None)
        monkeypatch.setattr(autoscaler.events, "record", lambda *_, **event: self.steps.append(event["kind"]))

    def _query(self, name: str, found: Any) -> Any:
        def query(_: Any, *asked: Any) -> Any:
            self.steps.append((name, *asked))
            return found

        return query

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
