"""A diagnostic waits for the diagnostics before it, and ends with its report or after its time."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.diagnostics import diagnostics as service
from keyscale.api.diagnostics.diagnostics import ANSWER_MS, IN_PROGRESS_MAX
from keyscale.api.diagnostics.schemas import DiagnosticRequest
from keyscale.api.errors import (
    DiagnosticNotFoundError,
    DiagnosticUnansweredError,
    JobStatusConflictError,
    TooManyInFlightError,
)
from keyscale.db.models import Attempt, Diagnostic, Job
from keyscale.vocabulary import AttemptStage, DiagnosticKind, DiagnosticStatus, JobStatus, Role

NOW_MS = 1_000_000
USER = Principal("id", "ann", Role.OPERATOR)


class World:
    """A running job, its diagnostics, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[str, Diagnostic] = {}
        self.told: list[dict[str, Any]] = []
        self.slept: list[float] = []
        self.now_s = 0.0
        self.attempt: Attempt | None = Attempt(job_id="job", number=3, attached_at_ms=1)
        self.job = Job(id="job", name="flights", status=JobStatus.RUNNING)
        sessions = SimpleNamespace(begin=lambda: nullcontext(None))
        self.context: Any = SimpleNamespace(sessions=sessions, reads=sessions.begin)
        self.then_report = lambda: None
        monkeypatch.setattr(service, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(service, "require_job", lambda *_, lock: {True: self.job}[lock])
        monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
        of_stage = {("job", AttemptStage.ACTIVE): lambda: self.attempt}
        monkeypatch.setattr(service.attempts, "of_stage", lambda _, *of: of_stage[of]())
        monkeypatch.setattr(service.diagnostics, "find", lambda _, job_id, name: self.rows.get({"job": name}[job_id]))
        monkeypatch.setattr(service.diagnostics, "pending", self._pending)
        monkeypatch.setattr(service.diagnostics, "add", self._add)
        monkeypatch.setattr(service.events, "record", lambda _, **event: self.told.append(event))
        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep))

    def _pending(self, _: Any, *of: Any) -> list[Diagnostic]:
        assert of == ("job", 3, NOW_MS)
        return list(self.rows.values())

    def _add(self, _: Any, name: str, *, at_ms: int, request: dict[str, Any], **columns: Any) -> Diagnostic:
        self.rows[name] = Diagnostic(id=name, requested_at_ms=at_ms, request=request, **columns)
        return self.rows[name]

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        self.then_report()

    def request(self, name: str | None = None, **wanted: Any) -> Any:
        given = DiagnosticRequest.model_validate({"id": name, "kind": "THREAD_DUMP", **wanted})
        return service.request(self.context, USER, "flights", given)

    def take(self) -> Any:
        wanted = DiagnosticRequest(kind=DiagnosticKind.THREAD_DUMP)
        return service.take(self.context, USER, "flights", wanted, seconds=1.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_diagnostic_may_take_its_own_time_after_the_diagnostics_before_it(world: World) -> None:
    world.request("a", kind="PROFILE", duration_ms=3000)
    world.request("b", kind="PROFILE", duration_ms=5000)
    world.request("c")
    until_ms = [row.until_ms for row in world.rows.values()]
    ends = [NOW_MS + 3000 + ANSWER_MS, NOW_MS + 8000 + 2 * ANSWER_MS, NOW_MS + 8000 + 3 * ANSWER_MS]
    assert until_ms == ends
    first = world.rows["a"]
    known = (first.job_id, first.attempt, first.kind, first.requested_at_ms, first.requested_by)
    assert known == ("job", 3, DiagnosticKind.PROFILE, NOW_MS, "ann")
    assert (first.request["id"], first.request["duration_ms"]) == ("a", 3000)
    assert world.told[0] == {
        "job_id": "job",
        "at_ms": NOW_MS,
        "kind": "DIAGNOSTIC_REQUESTED",
        "actor": "ann",
        "message": "ann looks into the job: PROFILE",
        "diagnostic_id": "a",
        "diagnostic_kind": DiagnosticKind.PROFILE,
        "duration_ms": 3000,
    }


def test_a_request_that_is_repeated_is_the_same_diagnostic_even_while_others_wait(world: World) -> None:
    first = world.request("0")
    for number in range(1, IN_PROGRESS_MAX):
        world.request(str(number))
    assert world.request("0", kind="PROFILE") == first
    with pytest.raises(TooManyInFlightError):
        world.request("new")
    assert (len(world.told), len(world.rows)) == (IN_PROGRESS_MAX, IN_PROGRESS_MAX)


@pytest.mark.parametrize(
    ("attempt", "status", "helps"),
    [
        (None, JobStatus.FAILED, "`./keyscale jobs show flights` shows why"),
        (None, JobStatus.STOPPED, "no driver runs the job while it is STOPPED: "),
        (Attempt(number=3), JobStatus.RESTARTING, "while it is RESTARTING: "),
    ],
    ids=["failed", "stopped", "its driver starts"],
)
def test_a_job_without_a_driver_is_not_looked_into(
    world: World, attempt: Attempt | None, status: JobStatus, helps: str
) -> None:
    world.attempt, world.job.status = attempt, status
    with pytest.raises(JobStatusConflictError, match=helps):
        world.request()
    assert (world.rows, world.told) == ({}, [])


@pytest.mark.parametrize(
    ("columns", "status", "ended_at_ms", "code"),
    [
        ({"until_ms": NOW_MS + 1}, "IN_PROGRESS", None, None),
        ({"until_ms": NOW_MS}, "FAILED", NOW_MS, DiagnosticUnansweredError.code),
        ({"ended_at_ms": 9}, "COMPLETED", 9, None),
        ({"ended_at_ms": 9, "failure": {"code": "X", "message": "no"}}, "FAILED", 9, "X"),
    ],
)
def test_a_diagnostic_is_over_with_its_report_or_after_its_time(
    world: World, columns: dict[str, Any], status: str, ended_at_ms: int | None, code: str | None
) -> None:
    known = {"id": "d", "job_id": "job", "attempt": 3, "kind": "THREAD_DUMP", "requested_by": "ann"}
    world.rows["d"] = Diagnostic(**{**known, "requested_at_ms": 1, "until_ms": 5, **columns})
    shown = service.show(world.context, "flights", "d")
    assert (shown.status, shown.ended_at_ms) == (status, ended_at_ms)
    assert (shown.failure and shown.failure.code) == code


def test_a_bundle_waits_for_a_report_and_not_for_ever(world: World) -> None:
    def report() -> None:
        if len(world.slept) == 2:
            [row] = world.rows.values()
            row.parts, row.ended_at_ms = [{"name": "driver", "text": "in run"}], NOW_MS

    world.then_report = report
    taken = world.take()
    assert (taken.status, taken.parts[0].text, len(world.slept)) == (DiagnosticStatus.COMPLETED, "in run", 2)
    world.rows.clear()
    world.then_report = lambda: None
    with pytest.raises(DiagnosticUnansweredError, match="the driver has not answered yet"):
        world.take()
    assert sum(world.slept[2:]) == pytest.approx(1.0, abs=0.3)

    def fail() -> None:
        for row in world.rows.values():
            row.failure, row.ended_at_ms = {"code": "X", "message": "no stacks"}, NOW_MS

    world.rows.clear()
    world.then_report = fail
    with pytest.raises(DiagnosticUnansweredError, match="no stacks"):
        world.take()


def test_the_diagnostics_of_a_job_are_listed_without_what_they_show(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [{"name": "driver", "text": "in run"}, {"name": "worker", "text": "waits"}]
    known = {"job_id": "job", "attempt": 3, "kind": "THREAD_DUMP", "requested_by": "ann", "until_ms": NOW_MS - 7}
    world.rows = {
        "done": Diagnostic(id="done", requested_at_ms=3, ended_at_ms=4, parts=parts, **known),
        "over": Diagnostic(id="over", requested_at_ms=2, **known),
    }
    monkeypatch.setattr(service.diagnostics, "list_of", lambda _, job_id: list({"job": world.rows}[job_id].values()))
    summary = {"job_id": "job", "attempt": 3, "kind": "THREAD_DUMP", "requested_by": "ann"}
    done = {**summary, "id": "done", "status": "COMPLETED", "requested_at_ms": 3, "ended_at_ms": 4, "failure": None}
    listed = service.list_of(world.context, "flights").model_dump(mode="json", exclude_none=True)["diagnostics"]
    assert listed[0] == {name: value for name, value in done.items() if value is not None}
    assert (listed[1]["id"], listed[1]["status"], listed[1]["ended_at_ms"]) == ("over", "FAILED", NOW_MS - 7)
    assert "the driver of attempt 3 has not answered in time" in listed[1]["failure"]["message"]
    assert service.show(world.context, "flights", "done").model_dump(mode="json") == {**done, "parts": parts}
    with pytest.raises(DiagnosticNotFoundError):
        service.show(world.context, "flights", "none")
