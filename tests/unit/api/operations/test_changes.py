"""A change of a specification is checked against the revision, the request and the job that it is about."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import (
    LastStateTooOldError,
    OutputWithdrawnError,
    RevisionConflictError,
    RevisionRequiredError,
    RevisionWithoutSavepointError,
)
from keyscale.api.lifecycle.requests import Change
from keyscale.api.lifecycle.restoring import Restore
from keyscale.api.operations import changes as service
from keyscale.api.operations.schemas.change import RollbackRequest, UpdateRequest
from keyscale.db.models import Attempt, Checkpoint, Job, Operation, Revision
from keyscale.jobs.protocol.messages import DriverMetrics, Failure, FailureHistory
from keyscale.jobs.protocol.specification import JobSpec, changed
from keyscale.vocabulary import JobStatus, OperationKind, RestoreMode, Role, UpgradeMode

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


EARLIER = Restore("asked-before", RestoreMode.STATELESS)


@pytest.mark.parametrize(
    ("change", "pending", "expected"),
    [
        ({}, EARLIER, None),
        ({"mode": STATELESS}, EARLIER, Restore("new", RestoreMode.STATELESS)),
        ({"mode": STATELESS, "rewind_to": "file:///s", "allow_non_restored_state": True}, None,
         Restore("new", RestoreMode.STATELESS)),
        ({"rewind_to": "file:///s"}, EARLIER, Restore("new", RestoreMode.REWIND, "file:///s")),
        ({"rewind_to": "file:///s", "allow_non_restored_state": True}, None,
         Restore("new", RestoreMode.REWIND, "file:///s", allow_non_restored_state=True)),
        ({"allow_non_restored_state": True}, None, Restore("new", allow_non_restored_state=True)),
        ({"allow_non_restored_state": True}, EARLIER,
         Restore("asked-before", RestoreMode.STATELESS, allow_non_restored_state=True)),
    ],
)  # fmt: skip
def test_a_job_that_does_not_run_starts_as_its_change_says(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], pending: Restore | None, expected: Restore | None
) -> None:
    selected: list[Any] = []
    stored: list[Restore] = []
    monkeypatch.setattr(service, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="new")))
    monkeypatch.setattr(service.requests, "select_revision", lambda _, job, to: selected.append((job.id, to.number)))
    monkeypatch.setattr(service.JobTransaction, "pending_restore", lambda _: pending)
    monkeypatch.setattr(service.JobTransaction, "set_pending_restore", lambda _, restore: stored.append(restore))
    service._change_settled(SESSION, Job(id="job"), Change(OperationKind.UPGRADE, revision(2), **change))
    assert (selected, stored) == ([("job", 2)], [] if expected is None else [expected])


@pytest.mark.parametrize(
    ("facts", "begun"),
    [
        ({"status": JobStatus.STOPPED}, "settled"),
        ({"status": JobStatus.FAILED, "mode": LAST_STATE}, "settled"),
        ({"changed": {"batch_interval_ms": 9}}, "followed"),
        ({"changed": {"batch_interval_ms": 9}, "mode": LAST_STATE}, LAST_STATE),
        ({"changed": {"batch_interval_ms": 9}, "rewind_to": "file:///s"}, SAVEPOINT),
        ({"changed": {"parameters": {"a": "b"}}}, SAVEPOINT),
        ({"changed": {"parameters": {"a": "b"}}, "is_failing": True}, LAST_STATE),
        ({"changed": {"parameters": {"a": "b"}}, "is_failing": True, "mode": STATELESS}, STATELESS),
        ({"changed": {"parallelism": 4}, "is_failing": True, "kind": OperationKind.RESCALE}, SAVEPOINT),
    ],
)
def test_a_change_begins_as_its_job_allows(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], begun: Any) -> None:
    noted: list[Any] = []
    before, to = revision(1), revision(2, **facts.get("changed", {"parallelism": 2}))
    required: list[Any] = []
    monkeypatch.setattr(service.revisions, "current", lambda *_: before)
    monkeypatch.setattr(service, "is_failing", lambda *_: facts.get("is_failing", False))
    monkeypatch.setattr(service, "_change_settled", lambda *_: noted.append("settled"))
    monkeypatch.setattr(service.requests, "adjust", lambda _, __, to, user: noted.append(("followed", to.number, user)))
    monkeypatch.setattr(service.requests, "require_changeable", lambda _, __, *what: required.append(what))
    monkeypatch.setattr(service.requests, "change", lambda *given, approved: (given[2:], approved))
    monkeypatch.setattr(
        service.requests, "record_done", lambda *given, before, to, **more: (given[2:], before.number, to.number, more)
    )
    kind = facts.get("kind", OperationKind.UPGRADE)
    change = Change(kind, to, facts.get("mode", SAVEPOINT), rewind_to=facts.get("rewind_to"))
    job, user = Job(id="job", status=facts.get("status", JobStatus.RUNNING)), cast("Any", "user")
    answer = cast("Any", service._begin(SESSION, job, user, "o", change, cast("Any", "waited")))
    if isinstance(begun, UpgradeMode):
        assert answer == (("user", "o", replace(change, mode=begun)), "waited")
        assert (required, noted) == ([(kind, begun)], [])
    else:
        assert answer == (("user", "o"), 1, 2, {"kind": kind, "approved": "waited"})
        assert (required, noted) == ([], [begun if begun == "settled" else ("followed", 2, "user")])


LIBRARY = "f" * 32


@pytest.mark.parametrize(
    ("given", "mode", "kind", "needs_program"),
    [
        ({"parallelism": 4}, SAVEPOINT, OperationKind.RESCALE, False),
        ({"parallelism": 4}, LAST_STATE, OperationKind.UPGRADE, False),
        ({"parallelism": 4}, STATELESS, OperationKind.UPGRADE, False),
        ({"parallelism": 4, "parameters": {"a": "b"}}, SAVEPOINT, OperationKind.UPGRADE, False),
        ({"batch_interval_ms": 9}, SAVEPOINT, OperationKind.UPGRADE, False),
        ({"artifact_id": "other"}, SAVEPOINT, OperationKind.UPGRADE, True),
        ({"libraries": [LIBRARY]}, SAVEPOINT, OperationKind.UPGRADE, True),
        ({"parallelism": 2}, SAVEPOINT, OperationKind.UPGRADE, None),
    ],
)
def test_an_update_is_checked_stored_as_a_revision_and_requested_as_its_kind(
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    mode: UpgradeMode,
    kind: OperationKind,
    needs_program: bool | None,
) -> None:
    """`needs_program`: None if the update changes nothing."""
    noted: list[Any] = []
    user, context, job = cast("Any", "user"), cast("Any", "context"), Job(id="job", revision=3)
    before, made = revision(3), revision(4)
    wanted = changed(JobSpec(artifact_id="program", parallelism=2), given)

    def plan_first(*of: Any) -> None:
        *rest, change, if_match = of
        noted.append(("planned", *rest[1:3], change(JobSpec(artifact_id="program", parallelism=2)), if_match))

    def carry_out(_: Any, name: str, told: Any, __: Any, begin: Any) -> Any:
        noted.append(("carried out", name, told))
        return begin(SESSION, job, "o")

    monkeypatch.setattr(service, "_plan_first", plan_first)
    monkeypatch.setattr(service, "carry_out", carry_out)
    monkeypatch.setattr(service, "_require_match", lambda of, if_match: noted.append(("matched", of.id, if_match)))
    monkeypatch.setattr(service.revisions, "current", lambda *_: before)
    monkeypatch.setattr(service, "check_specification", lambda _, spec: noted.append(("checked", spec)))
    monkeypatch.setattr(service, "require_program", lambda *of: noted.append(("program", *of[2:])))
    monkeypatch.setattr(service, "require_covered", lambda *of: noted.append(("covered", *of[1:])))
    monkeypatch.setattr(service.requests, "revise", lambda *of: noted.append(("revised", of[1].id, *of[2:])) or made)
    monkeypatch.setattr(service.requests, "record_done", lambda *of, **more: ("done", of[1].id, *of[2:], more))
    monkeypatch.setattr(service, "request_change", lambda *of: ("requested", of[1].id, *of[2:]))
    limits: dict[str, Any] = {"allow_non_restored_state": True, "last_state_age_ms_max": 70}
    request = UpdateRequest(spec=given, message="why", upgrade_mode=mode, **limits)
    answer = cast("Any", service.update(context, user, "flights", request, '"3"'))
    first = [] if mode is STATELESS else [("planned", user, "flights", wanted, '"3"')]
    first += [("carried out", "flights", OperationKind.UPGRADE), ("matched", "job", '"3"')]
    if needs_program is None:
        assert noted == first
        assert answer == ("done", "job", user, "o", {"kind": kind, "before": before, "to": before})
        return
    present = JobSpec(artifact_id="program", parallelism=2)
    assert noted == [
        *first,
        ("checked", wanted),
        *([("program", user, wanted)] if needs_program else []),
        ("covered", user, present, wanted),
        ("revised", "job", wanted, user, "why"),
    ]
    assert answer == ("requested", "job", user, "o", Change(kind, made, mode, **limits))


def test_an_update_and_a_rollback_can_be_planned_without_being_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    context, user = cast("Any", "context"), cast("Any", "user")
    monkeypatch.setattr(service.plans, "plan", lambda *of: ("a plan", *of))
    monkeypatch.setattr(service.plans, "plan_return", lambda *of: ("a return", *of))
    monkeypatch.setattr(service, "planned", lambda *of: of)
    update = UpdateRequest(spec={"parallelism": 4}, dry_run=True)
    back = RollbackRequest(revision=2, dry_run=True)
    shown = [service.update(context, user, "flights", update, None), service.roll_back(context, user, "flights", back)]
    assert shown == [
        (user, OperationKind.UPGRADE, ("a plan", context, user, "flights", update)),
        (user, OperationKind.ROLLBACK, ("a return", context, user, "flights", 2)),
    ]


@pytest.mark.parametrize("state", ["SAVEPOINT", "CURRENT"])
def test_a_rollback_takes_the_savepoint_of_its_revision_or_the_present_state(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    noted: list[Any] = []
    job, context = Job(id="job", revision=4), cast("Any", SimpleNamespace(reads=lambda: nullcontext(None)))
    of_revision = {2: revision(2, parallelism=8), 4: revision(4)}

    def plan_first(_: Any, user: Any, name: str, __: Any, change: Any) -> None:
        noted.append(("planned", user, name, change(None).parallelism))

    def carry_out(_: Any, name: str, kind: Any, __: Any, begin: Any) -> Any:
        return name, kind, begin(SESSION, job, "o")

    monkeypatch.setattr(service, "require_job", lambda _, name: {"flights": job}[name])
    monkeypatch.setattr(service, "require_revision", lambda _, __, number: of_revision[number])
    monkeypatch.setattr(service.revisions, "current", lambda *_: of_revision[4])
    monkeypatch.setattr(service.operations, "last_savepoint_of", lambda _, *of: {("job", 2): "file:///s"}.get(of))
    monkeypatch.setattr(service, "check_specification", lambda _, spec: noted.append(("checked", spec.parallelism)))
    monkeypatch.setattr(
        service, "require_covered", lambda _, __, before, after: noted.append((before.parallelism, after.parallelism))
    )
    monkeypatch.setattr(service, "_plan_first", plan_first)
    monkeypatch.setattr(service, "_require_output", lambda _, name, __: noted.append(("output", name)))
    monkeypatch.setattr(service, "carry_out", carry_out)
    monkeypatch.setattr(service, "request_change", lambda *given: given[2:])
    request = RollbackRequest(revision=2, state=state, allow_non_restored_state=True)
    rewind_to = "file:///s" if state == "SAVEPOINT" else None
    wanted = Change(OperationKind.ROLLBACK, of_revision[2], allow_non_restored_state=True, rewind_to=rewind_to)
    answer = service.roll_back(context, cast("Any", "user"), "flights", request)
    assert answer == cast("Any", ("flights", OperationKind.ROLLBACK, ("user", "o", wanted)))
    first = ("output", "flights") if state == "SAVEPOINT" else ("planned", "user", "flights", 8)
    assert noted == [first, ("checked", 8), (2, 8)]
    of_revision[3] = revision(3)
    if state == "SAVEPOINT":
        with pytest.raises(RevisionWithoutSavepointError, match="revision 3 has no savepoint"):
            service.roll_back(context, cast("Any", "user"), "flights", request.model_copy(update={"revision": 3}))


@pytest.mark.parametrize(
    ("location", "id_", "keeps", "is_refused"),
    [("file:///s", "new", False, True), ("file:///s", "new", True, False), ("file:///s", "known", False, False),
     (None, "new", False, False)],
)  # fmt: skip
def test_a_savepoint_whose_output_was_taken_back_is_refused(
    monkeypatch: pytest.MonkeyPatch, location: str | None, id_: str, keeps: bool, is_refused: bool
) -> None:
    asked: list[Any] = []
    job = Job(id="job", store_url="file:///store")
    monkeypatch.setattr(service, "require_job", lambda _, name: {"flights": job}[name])
    monkeypatch.setattr(service.operations, "last_savepoint_of", lambda _, *of: {("job", 2): location}[of])
    monkeypatch.setattr(service, "is_known", lambda _, request: request.id == "known")
    store = SimpleNamespace(keeps_output=lambda *what, limit_ms: asked.append((*what, limit_ms)) or keeps)
    context = cast(
        "Any",
        SimpleNamespace(reads=lambda: nullcontext(None), store=store, settings=SimpleNamespace(plan_timeout_ms=7)),
    )
    request = RollbackRequest(revision=2, id=id_)
    if is_refused:
        with pytest.raises(OutputWithdrawnError, match="file:///s"):
            service._require_output(context, "flights", request)
    else:
        service._require_output(context, "flights", request)
    is_asked = location is not None and id_ == "new"
    assert asked == ([("file:///store", "file:///s", 7)] if is_asked else [])
