"""What the API shows of an autoscaler: its mode, its decisions, and the past input at another parallelism."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.autoscaling import decisions
from keyscale.api.autoscaling.facts import Limits, ScalingFacts
from keyscale.api.autoscaling.input_replay import Replay
from keyscale.api.autoscaling.observation import shown as shown_facts
from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.db.models import Job, Revision, ScalingDecision
from keyscale.db.repositories.pages import Page, PageRequest
from keyscale.db.repositories.series import RETENTIONS
from keyscale.vocabulary import AutoscalerMode, ScalingVerdict

HOUR_MS = 3_600_000
NOW_MS = 1000 * HOUR_MS
CONTEXT: Any = SimpleNamespace(reads=lambda: nullcontext(None))


class Replayed:
    """A job whose input is replayed, and what is read of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[Any] = []
        self.batches: list[str] = ["a batch"]
        self.found: Replay | None = Replay(500.0, [10, 20], [4.0, 8.0], [3.0, 6.0], [0.0, 2.0], 2.0)
        job = SimpleNamespace(id="job", max_parallelism=16)
        monkeypatch.setattr(decisions, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(decisions, "require_job_id", lambda _, name: {"flights": "job"}[name])
        monkeypatch.setattr(decisions.scaling, "find_job", lambda _, job_id: {"job": job}[job_id])
        monkeypatch.setattr(decisions.scaling, "loads", self._loads)
        monkeypatch.setattr(decisions.scaling, "runs", self._runs)
        monkeypatch.setattr(decisions, "division_by_size", lambda _, of: {id(job): "the division"}[id(of)])
        monkeypatch.setattr(decisions, "facts_of", self._facts_of)
        monkeypatch.setattr(decisions, "CostModel", lambda facts: SimpleNamespace(capacity=("capacity", facts)))
        monkeypatch.setattr(decisions, "replay", self._replay)
        self.job = job

    def _loads(self, _: Any, *of: Any) -> Any:
        self.read.append(of)
        return {"job": "the loads"}

    def _runs(self, _: Any, *of: Any) -> str:
        self.read.append(of)
        return "the runs"

    def _facts_of(self, job: Any, loads: Any, past: Any, **known: Any) -> Any:
        assert (job, loads, past) == (self.job, (), ())
        assert known == {"core_ms": 0, "parallelism_max": 16, "at_ms": NOW_MS, "division": "the division"}
        self.facts = SimpleNamespace(batches=self.batches)
        return self.facts

    def _replay(self, *of: Any) -> Replay | None:
        assert of[:3] == ("the loads", "the runs", ("capacity", self.facts))
        self.read.append(of[3])
        return self.found

    def show(self, parallelism: int, hours: float = 1.0) -> dict[str, Any]:
        return decisions.replay_of(CONTEXT, "flights", parallelism, hours).model_dump()


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    return Replayed(monkeypatch)


@pytest.mark.parametrize(
    ("parallelism", "hours", "step_ms"), [(8, 0.5, RETENTIONS[0].step_ms), (17, 24.0, RETENTIONS[1].step_ms)]
)
def test_a_replay_shows_the_backlog_as_measured_as_the_model_has_it_and_at_the_other_parallelism(
    replayed: Replayed, parallelism: int, hours: float, step_ms: int
) -> None:
    assert replayed.show(parallelism, hours) == {
        "parallelism": parallelism,
        "capacity": 500.0,
        "peaks": {"measured_ms": 4000.0, "as_run_ms": 3000.0, "replayed_ms": 1000.0},
        "error": 0.25,
        "reason": None,
        "points": [
            {"at_ms": 10, "lag_records": 4.0, "as_run": 3.0, "replayed": 0.0},
            {"at_ms": 20, "lag_records": 8.0, "as_run": 6.0, "replayed": 2.0},
        ],
    }
    since_ms = NOW_MS - int(hours * HOUR_MS)
    assert replayed.read == [(["job"], since_ms, step_ms), ("job", since_ms), min(parallelism, 16)]


def test_a_replay_that_nothing_is_known_for_has_the_reason(replayed: Replayed) -> None:
    nothing = {"parallelism": 8, "capacity": None, "peaks": None, "error": None, "points": []}
    replayed.found = None
    reason = "the sources have not said how many records waited in this time"
    assert replayed.show(8) == {**nothing, "reason": reason}
    replayed.batches = []
    reason = "no batch with input shows how fast the job is: start the job first"
    assert replayed.show(8) == {**nothing, "reason": reason}


def test_an_autoscaler_is_shown_with_its_latest_decision_and_its_latest_move(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = shown_facts(ScalingFacts(NOW_MS, 2, 16, Limits(1, 8)))
    known: dict[str, Any] = {"advice": None, "facts": facts, "present": None, "expected": None, "outcome": None}
    known |= {"confirmed_at_ms": 9, "message": "m", "parallelism": 2, "target": 2, "operation_id": None}
    rows = [
        ScalingDecision(id=number, job_id="job", at_ms=number, verdict=verdict, **known)
        for number, verdict in ((7, ScalingVerdict.STEADY), (5, ScalingVerdict.SCALE_UP))
    ]

    def list_page(_: Any, job_id: str, page: PageRequest, *, moves_only: bool) -> Page[ScalingDecision]:
        asked.append((job_id, page, moves_only))
        found = rows[1:] if moves_only else rows
        return Page(found[: page.limit], (5,) if len(found) > page.limit else None)

    asked: list[Any] = []
    revision = Revision(spec={"autoscaler": {"mode": "MONITORING"}})
    monkeypatch.setattr(decisions, "require_job", lambda _, name: {"flights": Job(id="job")}[name])
    monkeypatch.setattr(decisions, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(decisions.revisions, "current", lambda _, job: {"job": revision}[job.id])
    monkeypatch.setattr(decisions.scaling, "list_page", list_page)
    shown = decisions.show(CONTEXT, "flights")
    assert shown.decision is not None
    assert shown.last_move is not None
    assert (shown.mode, shown.decision.at_ms, shown.last_move.at_ms) == (AutoscalerMode.MONITORING, 7, 5)
    asked.clear()
    listed = decisions.list_of(CONTEXT, "flights", Listing(1, write_cursor((9,))), moves_only=False)
    assert ([each.at_ms for each in listed.decisions], listed.next) == ([7], write_cursor((5,)))
    moves = decisions.list_of(CONTEXT, "flights", Listing(1), moves_only=True)
    assert ([each.at_ms for each in moves.decisions], moves.next) == ([5], None)
    assert asked == [("job", PageRequest(1, (9,)), False), ("job", PageRequest(1, None), True)]
    rows.clear()
    never = decisions.show(CONTEXT, "flights")
    assert (never.decision, never.last_move) == (None, None)
