"""An operation is the one of its id, shown with its own result."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.errors import OperationIdTakenError, OperationNotFoundError, SavepointNotFoundError
from keyscale.api.schemas.job import StopRequest
from keyscale.api.schemas.operation import OperationRequest, SavepointRequest
from keyscale.api.services import changes as changes_service
from keyscale.api.services import operations as service
from keyscale.db.models import Job, Operation
from keyscale.jobs.protocol.operations import (
    ChangePhase,
    OperationKind,
    OperationStatus,
    UpgradeMode,
)

SESSION: Any = None
JOB = Job(id="job")
STOP, DRAIN, SAVEPOINT = OperationKind.STOP, OperationKind.DRAIN, OperationKind.SAVEPOINT


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The operations by their ids; each id is reserved before it is looked for."""
    rows: dict[str, Any] = {}
    reserved: set[str] = set()

    def find(_: Any, name: str) -> Any:
        assert name in reserved, "two requests with one id come one after the other"
        return rows.get(name)

    monkeypatch.setattr(service.operations, "reserve_id", lambda _, name: reserved.add(name))
    monkeypatch.setattr(service.operations, "find", find)
    return rows


def operation(name: str, kind: OperationKind = STOP, **columns: Any) -> Operation:
    return Operation(**{"id": name, "job_id": "job", "kind": kind, **columns})


@pytest.mark.parametrize(
    ("row", "kind", "is_same"),
    [
        (operation("o"), STOP, True),
        (operation("o", DRAIN), DRAIN, True),
        (operation("o", DRAIN), STOP, False),
        (operation("o", SAVEPOINT), STOP, False),
        (operation("o", SAVEPOINT), SAVEPOINT, True),
        (operation("o", job_id="other"), STOP, False),
    ],
)
def test_a_request_with_the_id_of_an_earlier_one_is_the_same_or_is_refused(
    stored: dict[str, Any], row: Any, kind: OperationKind, is_same: bool
) -> None:
    assert service.find_repeated(SESSION, JOB, "o", kind) is None
    stored["o"] = row
    if is_same:
        assert service.find_repeated(SESSION, JOB, "o", kind) is row
    else:
        with pytest.raises(OperationIdTakenError):
            service.find_repeated(SESSION, JOB, "o", kind)


@pytest.mark.parametrize(
    ("row", "is_same"),
    [
        (operation("o", OperationKind.UPGRADE), True),
        (operation("o", OperationKind.UPGRADE, job_id="other"), False),
        (operation("o"), False),
    ],
)
def test_a_change_with_the_id_of_an_earlier_one_is_the_same_or_is_refused(
    stored: dict[str, Any], row: Any, is_same: bool
) -> None:
    assert changes_service.find_repeated(SESSION, JOB, "o") is None
    stored["o"] = row
    if is_same:
        assert changes_service.find_repeated(SESSION, JOB, "o") is row
    else:
        with pytest.raises(OperationIdTakenError):
            changes_service.find_repeated(SESSION, JOB, "o")


def test_operations_are_shown_with_their_results_and_what_a_user_has_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"status": OperationStatus.COMPLETED, "requested_at_ms": 1, "ended_at_ms": 2}
    kept = operation("kept", SAVEPOINT, location="file:///k", checkpoint_id=5, **given)
    gone = operation("gone", SAVEPOINT, location="file:///g", checkpoint_id=6, **given)
    failed = operation(
        "failed", **{**given, "status": OperationStatus.FAILED, "failure": {"code": "X", "message": "no"}}
    )

    def discarded_among(_: Any, taken: list[tuple[str, int]]) -> set[tuple[str, int]]:
        return {("job", 6), ("other", 5)} & set(taken)

    def of_change(status: OperationStatus, kind: OperationKind) -> Operation:
        return Operation(
            id=f"{kind} {status}",
            job_id="job",
            kind=kind,
            status=status,
            phase=ChangePhase.VERIFY,
            phases=[],
            from_revision=1,
            to_revision=2,
            from_parallelism=1,
            to_parallelism=2,
            upgrade_mode=UpgradeMode.SAVEPOINT,
            allow_non_restored_state=False,
            old_attempt=1,
            requested_at_ms=3,
            ended_at_ms=9,
            location="file:///c",
            failure={"code": "Y", "message": "no"} if status is OperationStatus.ROLLED_BACK else None,
        )

    changes = [
        of_change(status, kind) for status in OperationStatus for kind in (OperationKind.RESCALE, OperationKind.UPGRADE)
    ]
    monkeypatch.setattr(service.operations, "find_all", lambda *_: [kept, gone, failed, *changes])
    monkeypatch.setattr(service.checkpoints, "discarded_among", discarded_among)
    shown = service.answers(SESSION, ["kept", "gone", "failed"])
    results = {name: shown[name].operation for name in ("kept", "gone", "failed")}
    assert results["failed"] is None
    assert [
        results[name] and (results[name].location, results[name].checkpoint_id, results[name].discarded)
        for name in ("kept", "gone")
    ] == [
        ("file:///k", 5, False),
        ("file:///g", 6, True),
    ]
    failure = shown["failed"].failure_cause
    assert (failure and failure.code, shown["kept"].created_at_ms, shown["kept"].ended_at_ms) == ("X", 1, 2)
    statuses = {name: answer.status for name, answer in shown.items() if " " in name}
    assert statuses.keys() == {change.id for change in changes}
    for name, status in statuses.items():
        kind, _, of = name.partition(" ")
        assert status == of
        result = shown[name].operation
        if of == "COMPLETED":
            assert result is not None
            assert (result.location, result.change_id) == ("file:///c", name)
            assert result.rescale_id == (name if kind == "RESCALE" else None)
        else:
            assert result is None
        assert (shown[name].failure_cause is not None) is (of == "ROLLED_BACK")
        assert (shown[name].created_at_ms, shown[name].ended_at_ms) == (3, 9)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_request_is_carried_out_once(
    stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_repeated: bool
) -> None:
    asked: list[Any] = []
    rung: list[int] = []
    in_progress = {"status": OperationStatus.IN_PROGRESS}
    context: Any = SimpleNamespace(
        sessions=SimpleNamespace(begin=lambda: nullcontext(None)), wakeup=SimpleNamespace(ring=lambda: rung.append(1))
    )
    user: Any = "user"

    def require_job(_: Any, name: str, *, lock: bool) -> Job:
        assert lock, "two requests for one job come one after the other"
        return {"flights": JOB}[name]

    def stop(_: Any, *what: Any, drain: bool) -> Operation:
        asked.append((*what, drain))
        return operation(what[2], **in_progress)

    def snapshot(_: Any, *what: Any) -> Operation:
        asked.append(what)
        return operation(what[2], what[3], **in_progress)

    monkeypatch.setattr(service, "require_job", require_job)
    monkeypatch.setattr(service.requests, "stop", stop)
    monkeypatch.setattr(service.requests, "snapshot", snapshot)
    if is_repeated:
        done = {"status": OperationStatus.COMPLETED}
        stored["end"], stored["s"] = operation("end", DRAIN, **done), operation("s", SAVEPOINT, **done)
    ended = service.stop(context, user, "flights", StopRequest(operation_id="end", drain=True))
    taken = service.trigger_savepoint(context, user, "flights", SavepointRequest(savepoint_id="s"))
    status = OperationStatus.COMPLETED if is_repeated else OperationStatus.IN_PROGRESS
    assert [(each.operation_id, each.status) for each in (ended, taken)] == [("end", status), ("s", status)]
    assert asked == ([] if is_repeated else [(JOB, "user", "end", True), (JOB, "user", "s", SAVEPOINT)])
    assert rung == [1], "a stop concerns the reconciler, too"
    unnamed = service.trigger_checkpoint(context, user, "flights", OperationRequest())
    assert unnamed.operation_id
    assert asked[-1][3] is OperationKind.CHECKPOINT


def test_a_savepoint_and_an_operation_that_are_not_there_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(service, "answers", lambda *_: {})
    monkeypatch.setattr(service.operations, "find", lambda *_: None)
    with pytest.raises(SavepointNotFoundError):
        service.show_savepoint(context, "flights", "s")
    with pytest.raises(OperationNotFoundError):
        service.show(context, "o")
