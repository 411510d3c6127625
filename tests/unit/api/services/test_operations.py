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
from keyscale.db.models import Change, Command, Job
from keyscale.db.statuses import ChangeKind, ChangePhase, ChangeStatus, CommandKind, CommandStatus, UpgradeMode

SESSION: Any = None
JOB = Job(id="job")
STOP, SAVEPOINT = CommandKind.STOP_WITH_SAVEPOINT, CommandKind.SAVEPOINT


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The commands and changes by their ids; each id is reserved before it is looked for."""
    rows: dict[str, Any] = {}
    reserved: set[str] = set()

    def found(kind: type) -> Any:
        def find(_: Any, name: str) -> Any:
            assert name in reserved, "two requests with one id come one after the other"
            row = rows.get(name)
            return row if isinstance(row, kind) else None

        return find

    monkeypatch.setattr(service.commands, "reserve_id", lambda _, name: reserved.add(name))
    monkeypatch.setattr(service.commands, "find", found(Command))
    monkeypatch.setattr(service.changes, "find", found(Change))
    return rows


def command(name: str, kind: CommandKind = STOP, **columns: Any) -> Command:
    return Command(**{"id": name, "job_id": "job", "kind": kind, "drain": False, **columns})


@pytest.mark.parametrize(
    ("row", "kind", "drain", "is_same"),
    [
        (command("o"), STOP, False, True),
        (command("o", drain=True), STOP, True, True),
        (command("o", drain=True), STOP, False, False),
        (command("o", SAVEPOINT), STOP, False, False),
        (command("o", SAVEPOINT), SAVEPOINT, False, True),
        (command("o", job_id="other"), STOP, False, False),
        (Change(id="o", job_id="job"), STOP, False, False),
    ],
)
def test_a_request_with_the_id_of_an_earlier_one_is_the_same_or_is_refused(
    stored: dict[str, Any], row: Any, kind: CommandKind, drain: bool, is_same: bool
) -> None:
    assert service.find_repeated(SESSION, JOB, "o", kind, drain=drain) is None
    stored["o"] = row
    if is_same:
        assert service.find_repeated(SESSION, JOB, "o", kind, drain=drain) is row
    else:
        with pytest.raises(OperationIdTakenError):
            service.find_repeated(SESSION, JOB, "o", kind, drain=drain)


@pytest.mark.parametrize(
    ("row", "is_same"),
    [(Change(id="o", job_id="job"), True), (Change(id="o", job_id="other"), False), (command("o"), False)],
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
    given = {"status": CommandStatus.COMPLETED, "created_at_ms": 1, "ended_at_ms": 2, "savepoint_id": "s"}
    kept = command("kept", SAVEPOINT, location="file:///k", checkpoint_id=5, **given)
    gone = command("gone", SAVEPOINT, location="file:///g", checkpoint_id=6, **given)
    failed = command("failed", **{**given, "status": CommandStatus.FAILED, "failure": {"code": "X", "message": "no"}})

    def discarded_among(_: Any, taken: list[tuple[str, int]]) -> set[tuple[str, int]]:
        return {("job", 6), ("other", 5)} & set(taken)

    def of_change(status: ChangeStatus, kind: ChangeKind) -> Change:
        return Change(
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
            savepoint_location="file:///c",
            failure={"code": "Y", "message": "no"} if status is ChangeStatus.ROLLED_BACK else None,
        )

    changes = [of_change(status, kind) for status in ChangeStatus for kind in (ChangeKind.RESCALE, ChangeKind.UPGRADE)]
    monkeypatch.setattr(service.commands, "find_all", lambda *_: [kept, gone, failed])
    monkeypatch.setattr(service.changes, "find_all", lambda *_: changes)
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
        is_over = ChangeStatus(of) is not ChangeStatus.IN_PROGRESS
        assert (status is CommandStatus.COMPLETED) is (of == "COMPLETED")
        assert (status is CommandStatus.IN_PROGRESS) is not is_over
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
    in_progress = {"status": CommandStatus.IN_PROGRESS}
    context: Any = SimpleNamespace(
        sessions=SimpleNamespace(begin=lambda: nullcontext(None)), wakeup=SimpleNamespace(ring=lambda: rung.append(1))
    )
    user: Any = "user"

    def require_job(_: Any, name: str, *, lock: bool) -> Job:
        assert lock, "two requests for one job come one after the other"
        return {"flights": JOB}[name]

    def stop(_: Any, *what: Any, drain: bool) -> Command:
        asked.append((*what, drain))
        return command(what[2], **in_progress)

    def snapshot(_: Any, *what: Any) -> Command:
        asked.append(what)
        return command(what[2], what[3], **in_progress)

    monkeypatch.setattr(service, "require_job", require_job)
    monkeypatch.setattr(service.intents, "stop", stop)
    monkeypatch.setattr(service.intents, "snapshot", snapshot)
    if is_repeated:
        done = {"status": CommandStatus.COMPLETED}
        stored["end"], stored["s"] = command("end", drain=True, **done), command("s", SAVEPOINT, **done)
    ended = service.stop(context, user, "flights", StopRequest(operation_id="end", drain=True))
    taken = service.trigger_savepoint(context, user, "flights", SavepointRequest(savepoint_id="s"))
    status = CommandStatus.COMPLETED if is_repeated else CommandStatus.IN_PROGRESS
    assert [(each.operation_id, each.status) for each in (ended, taken)] == [("end", status), ("s", status)]
    assert asked == ([] if is_repeated else [(JOB, "user", "end", True), (JOB, "user", "s", SAVEPOINT)])
    assert rung == [1], "a stop concerns the reconciler, too"
    unnamed = service.trigger_checkpoint(context, user, "flights", OperationRequest())
    assert unnamed.operation_id
    assert asked[-1][3] is CommandKind.CHECKPOINT


def test_a_savepoint_and_an_operation_that_are_not_there_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(service, "answers", lambda *_: {})
    monkeypatch.setattr(service.commands, "find_savepoint", lambda *_: None)
    with pytest.raises(SavepointNotFoundError):
        service.show_savepoint(context, "flights", "s")
    with pytest.raises(OperationNotFoundError):
        service.show(context, "o")
