"""An operation is stored once, and shown with its own result."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.errors import ApiError, OperationIdTakenError, OperationNotCancellableError, OperationNotFoundError
from keyscale.api.lifecycle.downtime_breakdown import metrics_of_change, prepared_ms
from keyscale.api.lifecycle.operation_results import described
from keyscale.api.lifecycle.requests import is_cancellable
from keyscale.api.operations import operation_requests
from keyscale.api.operations import operations as service
from keyscale.api.operations.schemas.change_plan import PlanAnswer
from keyscale.api.operations.schemas.operation import OperationRequest, RescaleRequest, StartRequest
from keyscale.db.models import Job, Operation
from keyscale.jobs.protocol.messages import DriverMetrics, OperatorMetrics
from keyscale.vocabulary import (
    ChangePhase,
    CommandStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
    Role,
    UpgradeMode,
)

SESSION: Any = None
JOB = Job(id="job")
USER = Principal("id", "ann", Role.OPERATOR)
STOP, DRAIN, SAVEPOINT = OperationKind.STOP, OperationKind.DRAIN, OperationKind.SAVEPOINT


class Stored:
    """The operations by their ids, and a control plane that has nothing else."""

    def __init__(self) -> None:
        self.rows: dict[str, Operation] = {}
        self.reserved: set[str] = set()
        self.rung = 0
        self.context: Any = SimpleNamespace(
            sessions=SimpleNamespace(begin=lambda: nullcontext(self)),
            reads=lambda: nullcontext(self),
            wakeup=SimpleNamespace(ring=self._ring),
        )

    def _ring(self) -> None:
        self.rung += 1

    def flush(self) -> None:
        """Sends nothing."""

    def find(self, _: Any, name: str) -> Operation | None:
        assert name in self.reserved, "two requests with one id come one after the other"
        return self.rows.get(name)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    rows = Stored()

    def require_job(_: Any, name: str, *, lock: bool) -> Job:
        assert lock, "two requests for one job come one after the other"
        return {"flights": JOB, "other": Job(id="other")}[name]

    monkeypatch.setattr(service, "require_job", require_job)
    monkeypatch.setattr(service.operations, "reserve_id", lambda _, name: rows.reserved.add(name))
    monkeypatch.setattr(service.operations, "find", rows.find)
    return rows


def operation(name: str, kind: OperationKind = STOP, **columns: Any) -> Operation:
    given = {"status": OperationStatus.IN_PROGRESS, "requested_at_ms": 1, **columns}
    return Operation(**{"id": name, "job_id": "job", "kind": kind, "allow_non_restored_state": False, **given})


def ask(stored: Stored, kind: OperationKind, request: OperationRequest, job: str = "flights") -> Any:
    def begin(_: Any, found: Job, operation_id: str) -> Operation:
        made = stored.rows[operation_id] = operation(operation_id, kind, job_id=found.id)
        return made

    return service.carry_out(stored.context, job, kind, request, begin)


def test_the_same_request_with_the_same_id_again_has_the_same_answer(stored: Stored) -> None:
    first = ask(stored, OperationKind.RESCALE, RescaleRequest(parallelism=4, id="o"))
    assert (first.id, first.status, first.kind) == ("o", OperationStatus.IN_PROGRESS, OperationKind.RESCALE)
    stored.rows["o"].status = OperationStatus.COMPLETED
    again = ask(stored, OperationKind.RESCALE, RescaleRequest(parallelism=4, id="o"))
    assert (again.id, again.status) == ("o", OperationStatus.COMPLETED)
    assert len(stored.rows) == 1
    assert stored.rung == 2
    assert ask(stored, STOP, OperationRequest()).id not in {None, "o"}


@pytest.mark.parametrize(
    ("kind", "request_", "job"),
    [
        (OperationKind.RESCALE, RescaleRequest(parallelism=3, id="o"), "flights"),
        (OperationKind.RESCALE, RescaleRequest(parallelism=4, id="o"), "other"),
        (STOP, OperationRequest(id="o"), "flights"),
    ],
    ids=["other arguments", "another job", "another kind"],
)
def test_the_id_of_another_operation_is_refused(
    stored: Stored, kind: OperationKind, request_: OperationRequest, job: str
) -> None:
    ask(stored, OperationKind.RESCALE, RescaleRequest(parallelism=4, id="o"))
    with pytest.raises(OperationIdTakenError):
        ask(stored, kind, request_, job)


@pytest.mark.parametrize(("kind", "is_same"), [(STOP, True), (DRAIN, False), (SAVEPOINT, False)])
def test_an_operation_of_a_version_before_is_repeated_by_its_kind(
    stored: Stored, kind: OperationKind, is_same: bool
) -> None:
    stored.rows["o"] = operation("o", STOP)
    if is_same:
        assert ask(stored, kind, OperationRequest(id="o")).kind is STOP
    else:
        with pytest.raises(OperationIdTakenError):
            ask(stored, kind, OperationRequest(id="o"))


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (STOP, ("stop", "o", STOP)),
        (DRAIN, ("stop", "o", DRAIN)),
        (OperationKind.CANCEL, ("cancel", "o")),
        (SAVEPOINT, ("snapshot", "o", SAVEPOINT)),
        (OperationKind.CHECKPOINT, ("snapshot", "o", OperationKind.CHECKPOINT)),
    ],
)
def test_each_kind_without_arguments_has_its_own_request(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, kind: OperationKind, asked: tuple[Any, ...]
) -> None:
    seen: list[Any] = []

    def noting(name: str) -> Any:
        def note(_: Any, job: Job, user: Any, operation_id: str, *more: Any, **options: Any) -> Operation:
            assert (job, user) == (JOB, USER)
            seen.append((name, operation_id, *more, *options.values()))
            return operation(operation_id, kind)

        return note

    for name in ("stop", "cancel", "snapshot"):
        monkeypatch.setattr(operation_requests.requests, name, noting(name))
    operation_requests.request(stored.context, USER, "flights", kind, OperationRequest(id="o"))
    assert seen == [asked]


def test_operations_are_shown_with_their_results_and_what_a_user_has_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"command_status": CommandStatus.COMPLETED, "status": OperationStatus.COMPLETED, "ended_at_ms": 3}
    kept = operation("kept", SAVEPOINT, location="file:///k", checkpoint_id=5, **taken)
    gone = operation("gone", SAVEPOINT, location="file:///g", checkpoint_id=6, **taken)
    why = {"code": "X", "message": "no"}
    failed = operation("failed", status=OperationStatus.FAILED, command_status=CommandStatus.FAILED, failure=why)

    def discarded_among(_: Any, found: list[tuple[str, int]]) -> set[tuple[str, int]]:
        return {("job", 6), ("other", 5)} & set(found)

    monkeypatch.setattr(service.operations, "find_all", lambda *_: [kept, gone, failed])
    monkeypatch.setattr(service.checkpoints, "discarded_among", discarded_among)
    shown = service.answers(SESSION, ["kept", "gone", "failed"])
    results = [shown[name].result for name in ("kept", "gone")]
    assert [each and (each.location, each.checkpoint_id, each.discarded) for each in results] == [
        ("file:///k", 5, False),
        ("file:///g", 6, True),
    ]
    assert (shown["kept"].duration_ms, shown["kept"].failure) == (2, None)
    failure = shown["failed"].failure
    assert (failure and failure.code, shown["failed"].result) == ("X", None)


def test_an_operation_that_is_not_there_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "answers", lambda *_: {})
    with pytest.raises(OperationNotFoundError):
        service.show(Stored().context, "o")


def change(**columns: Any) -> Operation:
    given = {
        "phase": ChangePhase.SAVEPOINT,
        "phases": [
            {"phase": "REQUESTED", "started_at_ms": 1000, "ended_at_ms": 1400},
            {"phase": "SAVEPOINT", "started_at_ms": 1400, "ended_at_ms": None},
        ],
        "from_revision": 1,
        "to_revision": 2,
        "from_parallelism": 3,
        "to_parallelism": 4,
        "upgrade_mode": UpgradeMode.SAVEPOINT,
        "old_attempt": 5,
        "requested_at_ms": 1000,
    }
    kind = columns.pop("kind", OperationKind.UPGRADE)
    return operation("c", kind, **{**given, **columns})


def test_durations_are_between_their_own_moments() -> None:
    shown = service.operation_answer(
        change(stopped_at_ms=2000, resumed_at_ms=2300, ended_at_ms=4000, times={"restored_at_ms": 2100})
    )
    assert (shown.duration_ms, shown.downtime_ms) == (3000, 300)
    assert [phase.duration_ms for phase in shown.phases] == [400, None]
    assert [(step.name, step.duration_ms) for step in shown.steps] == [("RESTORE", 100)]
    approved = service.operation_answer(change(approved_at_ms=3000, ended_at_ms=4000))
    assert approved.duration_ms == 1000, "the wait for an approval is no part of the change"
    unfinished = service.operation_answer(change(stopped_at_ms=2000))
    assert (unfinished.duration_ms, unfinished.downtime_ms) == (None, None)


def test_what_the_job_did_before_and_after_is_not_mixed_up() -> None:
    before, after = metrics_of_change({"batches": 1, "pending_records": 5}), metrics_of_change({"batches": 2})
    shown = service.operation_answer(change(metrics_before=before, metrics_after=after))
    assert shown.metrics_before is not None
    assert shown.metrics_after is not None
    assert (shown.metrics_before.lag_records, shown.metrics_after.lag_records) == (5, None)


@pytest.mark.parametrize(
    ("columns", "can_cancel"),
    [
        ({}, True),
        ({"phase": ChangePhase.VERIFY}, True),
        ({"phase": ChangePhase.ROLL_BACK}, False),
        ({"status": OperationStatus.COMPLETED}, False),
        ({"status": OperationStatus.FAILED}, False),
    ],
)
def test_a_change_can_be_cancelled_once_until_it_goes_back_or_is_over(
    columns: dict[str, Any], can_cancel: bool
) -> None:
    assert is_cancellable(change(**columns)) is can_cancel
    assert service.operation_answer(change(**columns)).can_cancel is can_cancel
    assert not service.operation_answer(change(**columns, cancel_requested_at_ms=9)).can_cancel


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        (change(status=OperationStatus.CANCELLED), OperationNotCancellableError),
        (change(phase=ChangePhase.ROLL_BACK), OperationNotCancellableError),
        (None, OperationNotFoundError),
    ],
    ids=["cancelled", "goes back", "deleted"],
)
def test_an_operation_is_judged_as_it_is_once_its_job_is_locked(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, meanwhile: Operation | None, error: type[ApiError]
) -> None:
    """Another request changes the operation while this request waits for the job's lock."""
    monkeypatch.setattr(service.operations, "find", lambda _, name: stored.rows.get(name))
    stored.rows["c"] = change(status=OperationStatus.PENDING_APPROVAL)

    def lock(_: Any, job_id: str) -> Job:
        assert job_id == "job"
        del stored.rows["c"]
        if meanwhile is not None:
            stored.rows["c"] = meanwhile
        return JOB

    monkeypatch.setattr(service.jobs, "lock", lock)
    with pytest.raises(error):
        service.cancel(stored.context, USER, "c")
    assert stored.rung == 0


def test_a_rescale_is_named_by_its_parallelism_and_any_other_change_by_its_revisions() -> None:
    assert described(change(kind=OperationKind.RESCALE)) == "rescale from 3 to 4"
    assert described(change()) == "upgrade from revision 1 to 2"
    assert described(change(kind=OperationKind.ROLLBACK)) == "rollback from revision 1 to 2"
    assert described(change(kind=OperationKind.RESTART)) == "restart of revision 2"


@pytest.mark.parametrize(
    ("launched", "attached", "stopped", "expected"),
    [(100, 900, 2000, 800), (100, 900, 500, 400), (100, 900, 50, 0), (None, 900, 500, None), (100, 900, None, None)],
)
def test_a_driver_is_prepared_until_it_asks_for_work_or_the_old_one_stops(
    launched: int | None, attached: int | None, stopped: int | None, expected: int | None
) -> None:
    times = {"launched_at_ms": launched, "attached_at_ms": attached}
    assert prepared_ms(change(times=times, stopped_at_ms=stopped)) == expected


def test_the_figures_that_a_change_keeps_are_those_of_the_report() -> None:
    assert metrics_of_change(None) is None
    assert metrics_of_change(DriverMetrics(input_records_per_second=5).model_dump()) is None, "no batch has run"
    reported = DriverMetrics(
        batches=1,
        input_records_per_second=1,
        processed_records_per_second=2,
        busy_ratio=0.5,
        batch_duration_ms=4,
        pending_records=6,
        operators=[OperatorMetrics(uid=str(lag_ms), event_time_lag_ms=lag_ms) for lag_ms in (7, 9, 8, None, 2**53, -1)],
    )
    assert metrics_of_change(reported.model_dump()) == {
        "input_rate": 1,
        "processed_rate": 2,
        "busy_ratio": 0.5,
        "batch_duration_ms": 4,
        "lag_records": 6,
        "lag_ms": 9,
    }


def test_an_operation_is_changed_as_it_is_once_its_job_is_locked(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, since = operation("o"), operation("o", location="file:///s")
    found: list[Operation | None] = [before, since]
    locked: list[str] = []
    acted: list[Any] = []
    monkeypatch.setattr(service.operations, "find", lambda _, name: {"o": found.pop(0)}[name])
    monkeypatch.setattr(service.jobs, "lock", lambda _, job_id: locked.append(job_id) or JOB)

    def act(session: Any, job: Job, row: Operation) -> None:
        assert session is stored
        acted.append((job, row, len(locked)))

    answer = service.act_on(stored.context, "o", act)
    assert (acted, locked, stored.rung) == ([(JOB, since, 1)], ["job"], 1)
    assert answer.result is not None
    assert answer.result.location == "file:///s"
    for gone in ([None, None], [before, None]):
        found[:] = gone
        with pytest.raises(OperationNotFoundError):
            service.act_on(stored.context, "o", act)
    assert (len(acted), stored.rung) == (1, 1)


@pytest.mark.parametrize("act", ["cancel", "approve"])
def test_a_cancel_and_an_approval_are_of_the_user_who_asks(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    row, acted = operation("o"), list[Any]()
    monkeypatch.setattr(service.operations, "find", lambda *_: row)
    monkeypatch.setattr(service.jobs, "lock", lambda *_: JOB)
    monkeypatch.setattr(service.requests, "cancel_operation", lambda _, *of: acted.append(of))
    monkeypatch.setattr(operation_requests.changes, "approve", lambda _, *of: acted.append(of))
    (service.cancel if act == "cancel" else operation_requests.approve)(stored.context, USER, "o")
    assert acted == [(row, USER) if act == "cancel" else (JOB, USER, row)]


def test_a_list_has_the_operations_of_its_job_of_the_chosen_kinds_and_statuses(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    kinds, statuses = [STOP], [OperationStatus.COMPLETED]

    def list_page(_: Any, job_id: str, page: Any, **chosen: Any) -> Any:
        asked.append((job_id, page.limit, page.after, chosen))
        return SimpleNamespace(rows=[operation("b"), operation("a")], next=(7, "a"))

    monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(service.operations, "list_page", list_page)
    found = service.list_of(stored.context, "flights", Listing(2, write_cursor((9, "c"))), kinds, statuses)
    assert asked == [("job", 2, (9, "c"), {"kinds": kinds, "statuses": statuses})]
    assert ([each.id for each in found.operations], found.next) == (["b", "a"], write_cursor((7, "a")))


def test_a_request_is_known_by_what_its_sender_has_given_so_that_a_later_version_knows_it(stored: Stored) -> None:
    ask(stored, OperationKind.START, StartRequest(id="o"))
    ask(stored, OperationKind.START, StartRequest(id="p", parallelism=4, reset_time=False))
    given: list[Any] = [["START", {}], ["START", {"parallelism": 4, "reset_time": False}]]
    digests = [hashlib.sha256(json.dumps(each).encode()).hexdigest() for each in given]
    assert [stored.rows[name].request_sha256 for name in ("o", "p")] == digests


def test_a_dry_run_is_answered_with_its_plan_and_nothing_that_has_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "now_ms", lambda: 77)
    plan = PlanAnswer.model_construct(job_id="job", from_parallelism=3, to_parallelism=4)
    monkeypatch.setattr(service, "OperationAnswer", dict)
    answer: Any = service.planned(USER, OperationKind.RESCALE, plan)
    assert answer == {
        "id": None,
        "job_id": "job",
        "kind": OperationKind.RESCALE,
        "status": None,
        "requested_at_ms": 77,
        "requested_by": "ann",
        "from_parallelism": 3,
        "to_parallelism": 4,
        "plan": plan,
    }


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"command_status": CommandStatus.COMPLETED, "checkpoint_id": 6}, (None, 6)),
        ({"command_status": CommandStatus.IN_PROGRESS, "location": "file:///s"}, ("file:///s", None)),
        ({"command_status": CommandStatus.FAILED, "checkpoint_id": 6}, None),
        ({"command_status": None}, None),
    ],
)
def test_an_operation_has_a_result_once_it_has_a_snapshot(
    columns: dict[str, Any], expected: tuple[str | None, int | None] | None
) -> None:
    result = service.operation_answer(operation("o", **columns)).result
    assert (None if result is None else (result.location, result.checkpoint_id)) == expected


def test_a_live_rescale_shows_for_how_long_it_held_the_batches() -> None:
    live = {"began_at_ms": 1000, "prepared_at_ms": 1400, "switched_at_ms": 2500, "held_ms": 30}
    shown = service.operation_answer(change(rescale_mode=RescaleMode.LIVE, live=live))
    assert (shown.held_ms, shown.prepared_ms) == (30, 400)
