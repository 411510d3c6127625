"""A change of a specification is checked against the revision, the request and the job that it is about."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import (
    LastStateTooOldError,
    RevisionConflictError,
    RevisionRequiredError,
)
from keyscale.api.lifecycle.requests import Change
from keyscale.api.operations import changes as service
from keyscale.api.operations.schemas.change import UpdateRequest
from keyscale.db.models import Attempt, Checkpoint, Job, Operation, Revision
from keyscale.jobs.protocol.messages import DriverMetrics, Failure, FailureHistory
from keyscale.jobs.protocol.specification import JobSpec, changed
from keyscale.vocabulary import JobStatus, OperationKind, Role, UpgradeMode

SESSION: Any = None
NOW_MS = 10_000
SAVEPOINT, LAST_STATE, STATELESS = UpgradeMode.SAVEPOINT, UpgradeMode.LAST_STATE, UpgradeMode.STATELESS


@pytest.mark.parametrize(
    "header", ["*", " * ", '"12"', 'W/"12"', '"11", "12"', 'W/"12", "13"', "12", " 12 ", '"x", "12"']
)
def test_a_request_that_names_the_present_revision_is_taken(header: str) -> None:
    service._require_match(Job(revision=12), header)


@pytest.mark.parametrize("header", ["", '"1"', '"2"', '"112"', '"123"', "1 2", "x", '"11", "13"', "11"])
def test_a_request_that_names_another_revision_is_refused(header: str) -> None:
    with pytest.raises(RevisionConflictError):
        service._require_match(Job(revision=12), header)


def test_a_request_names_its_revision() -> None:
    with pytest.raises(RevisionRequiredError):
        service._require_match(Job(revision=12), None)


@pytest.mark.parametrize(
    ("change", "is_followed"),
    [
        ({"batch_interval_ms": 9}, True),
        ({"restart": {"type": "none"}}, True),
        ({"checkpoints": {"interval_ms": 200, "timeout_ms": 3000}}, True),
        ({"checkpoints": {"interval_ms": 200}, "parallelism": 3}, False),
        ({"parameters": {"input": "/in"}}, False),
        ({"checkpoints": {"store_outage_max_ms": 7}}, False),
    ],
)
def test_a_running_job_follows_a_change_of_settings_alone(change: dict[str, Any], is_followed: bool) -> None:
    present = JobSpec(artifact_id="program", parallelism=2)
    wanted = changed(present, change)
    assert service._is_followed(present, wanted) is is_followed


def revision(number: int, **columns: Any) -> Revision:
    spec = JobSpec.model_validate({"artifact_id": "program", "parallelism": 2, **columns})
    return Revision(job_id="job", number=number, spec=spec.given())


FAILED = {"last_failure": Failure(code="X", message="no"), "failures": FailureHistory(count=1, times_ms=[100])}


@pytest.mark.parametrize(
    ("job", "metrics", "last_commit_at_ms", "is_failing"),
    [
        ({}, {}, None, False),
        ({}, None, None, False),
        ({"status": JobStatus.RESTARTING}, {}, 500, True),
        ({"failure": {"code": "X"}}, {}, 500, True),
        ({}, {**FAILED, "input_batches": 1}, 99, True),
        ({}, {**FAILED, "input_batches": 1}, 100, False),
        ({}, {**FAILED, "input_batches": 0}, 100, True),
        ({}, {"input_batches": 0}, 100, False),
    ],
)
def test_a_job_fails_until_a_batch_with_input_is_committed(
    monkeypatch: pytest.MonkeyPatch,
    job: dict[str, Any],
    metrics: dict[str, Any] | None,
    last_commit_at_ms: int | None,
    is_failing: bool,
) -> None:
    reported = None if metrics is None else DriverMetrics(**metrics).model_dump()
    active = Attempt(job_id="job", metrics=reported, last_commit_at_ms=last_commit_at_ms)
    monkeypatch.setattr(
        service.attempts, "of_stage", lambda _, job_id, stage: {("job", "ACTIVE"): active}[job_id, stage]
    )
    assert service.is_failing(SESSION, Job(**{"id": "job", "status": JobStatus.RUNNING, **job})) is is_failing


@pytest.mark.parametrize(
    ("ack_ms", "age_ms_max", "is_young", "facts"),
    [
        (9_000, 1_000, True, {}),
        (9_000, 999, False, {}),
        (None, 1_000, False, {}),
        (0, None, True, {}),
        (None, None, True, {}),
        (0, 999, True, {"mode": SAVEPOINT}),
        (0, 999, True, {"status": JobStatus.STOPPED}),
        (0, 999, True, {"status": JobStatus.SLEEPING}),
    ],
)
def test_the_last_state_of_a_running_job_is_at_most_as_old_as_the_change_allows(
    monkeypatch: pytest.MonkeyPatch, ack_ms: int | None, age_ms_max: int | None, is_young: bool, facts: dict[str, Any]
) -> None:
    latest = Checkpoint(checkpoint_id=3, latest_ack_timestamp=ack_ms)
    monkeypatch.setattr(service.JobTransaction, "latest_completed", lambda _: latest)
    monkeypatch.setattr(service, "now_ms", lambda: NOW_MS)
    job = Job(id="job", status=facts.get("status", JobStatus.RUNNING))
    mode = facts.get("mode", LAST_STATE)
    change = Change(OperationKind.UPGRADE, revision(1), mode, last_state_age_ms_max=age_ms_max)
    if is_young:
        service._require_young(SESSION, job, change)
    else:
        with pytest.raises(LastStateTooOldError):
            service._require_young(SESSION, job, change)


def test_an_approved_change_is_the_change_that_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    before, to = revision(1, parallelism=1), revision(2)
    monkeypatch.setattr(service.requests, "approve", lambda *_: None)
    monkeypatch.setattr(service.revisions, "current", lambda *_: before)
    monkeypatch.setattr(service, "require_revision", lambda _, __, number: {2: to}[number])
    monkeypatch.setattr(service, "is_failing", lambda *_: False)
    monkeypatch.setattr(service.requests, "require_changeable", lambda *_: None)
    monkeypatch.setattr(
        service.requests, "change", lambda *given, approved: begun.append((given[-2], given[-1], approved))
    )
    waiting = Operation(
        id="back",
        job_id="job",
        kind=OperationKind.ROLLBACK,
        to_revision=2,
        upgrade_mode=LAST_STATE,
        allow_non_restored_state=True,
        rewind_to="file:///store/savepoint.json",
        last_state_age_ms_max=1000,
        requested_by="ann",
    )
    latest = Checkpoint(checkpoint_id=3, latest_ack_timestamp=NOW_MS - 1000)
    monkeypatch.setattr(service.JobTransaction, "latest_completed", lambda _: latest)
    monkeypatch.setattr(service, "now_ms", lambda: NOW_MS)
    job, user = Job(id="job", revision=1, status=JobStatus.RUNNING), Principal("id", "ben", Role.OPERATOR)
    service.approve(SESSION, job, user, waiting)
    wanted = Change(OperationKind.ROLLBACK, to, LAST_STATE, True, "file:///store/savepoint.json", 1000)
    assert begun == [("back", wanted, waiting)]
    latest.latest_ack_timestamp = NOW_MS - 1001
    with pytest.raises(LastStateTooOldError):
        service.approve(SESSION, job, user, waiting)
    waiting.approved_by = "ben"
    service.approve(SESSION, job, user, waiting)
    assert len(begun) == 1, "a repeated approval changes nothing"


@pytest.mark.parametrize(
    ("request_", "status", "is_planned"),
    [
        ({}, JobStatus.RUNNING, True),
        ({}, JobStatus.RESTARTING, True),
        ({}, JobStatus.STOPPED, False),
        ({}, JobStatus.UPGRADING, False),
        ({"plan_first": False}, JobStatus.RUNNING, False),
        ({"id": "known"}, JobStatus.RUNNING, False),
        ({"id": "new"}, JobStatus.RUNNING, True),
    ],
)
def test_a_change_of_a_running_job_is_planned_before_anything_stops(
    monkeypatch: pytest.MonkeyPatch, request_: dict[str, Any], status: JobStatus, is_planned: bool
) -> None:
    planned: list[Any] = []
    job = Job(id="job", revision=1, status=status)
    monkeypatch.setattr(service, "require_job", lambda _, name: {"flights": job}[name])
    monkeypatch.setattr(service, "is_known", lambda _, request: request.id == "known")
    monkeypatch.setattr(service.revisions, "current", lambda *_: revision(1))
    monkeypatch.setattr(service.plans, "require_takeover", lambda *what, **more: planned.append((*what[1:], more)))
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    user: Any = "user"
    request = UpdateRequest(spec={"parallelism": 4}, allow_non_restored_state=True, **request_)

    def change(present: JobSpec) -> JobSpec:
        return present.model_copy(update={"parallelism": 4})

    service._plan_first(context, user, "flights", request, change, '"1"')
    wanted = JobSpec(artifact_id="program", parallelism=4)
    allows = {"allow_non_restored_state": True}
    assert planned == ([("user", "flights", wanted, allows)] if is_planned else [])
    if is_planned:
        with pytest.raises(RevisionConflictError):
            service._plan_first(context, user, "flights", request, change, '"2"')
