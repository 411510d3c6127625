"""A request of a user changes exactly the columns of a job and of a command that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import (
    ApprovalRefusedError,
    JobStatusConflictError,
    OperationInProgressError,
    OperationNotCancellableError,
    OwnApprovalError,
    TooManyInFlightError,
)
from keyscale.api.job_spec import spec_of
from keyscale.api.lifecycle import operation_results, requests
from keyscale.db.models import Attempt, Event, Job, Operation, Revision
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import (
    STOPS,
    AttemptStage,
    ChangePhase,
    CommandKind,
    CommandStatus,
    DesiredState,
    DriverState,
    JobStatus,
    OperationKind,
    OperationStatus,
    Role,
    SnapshotOwner,
    UpgradeMode,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

USER = Principal("id", "ann", Role.OPERATOR)
NOW_MS = 5000
Row = TypeVar("Row")


class Rows:
    """In place of a session: keeps the rows that are added, and answers each query with one attempt or number."""

    def __init__(self, active: Attempt | None = None, number: int | None = None) -> None:
        self.added: list[Any] = []
        self.running: Operation | None = None
        self._active, self._number = active, number

    def add(self, row: Any) -> None:
        self.added.append(row)

    def flush(self) -> None:
        """Sends nothing."""

    def scalars(self, _: Any) -> Rows:
        return self

    def all(self) -> list[Any]:
        """Returns the subscriptions to an event: none."""
        return []

    def first(self) -> Attempt | None:
        return self._active

    def scalar(self, _: Any) -> int | None:
        return self._number

    def one(self, kind: type[Row]) -> Row:
        """Returns the one row of a kind that was added."""
        [found] = [row for row in self.added if isinstance(row, kind)]
        return found


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (requests, operation_results):
        monkeypatch.setattr(module, "now_ms", lambda: NOW_MS)
    monkeypatch.setattr(requests.operations, "running", lambda rows, job_id: rows.running if job_id == "job" else None)


def session(rows: Rows) -> Session:
    return cast("Any", rows)


def job(status: JobStatus = JobStatus.RUNNING, **columns: Any) -> Job:
    return Job(id="job", name="flights", status=status, revision=3, **columns)


def active(number: int = 4) -> Attempt:
    return Attempt(job_id="job", number=number, stage=AttemptStage.ACTIVE, revision=3)


def test_a_start_forgets_what_was_before_it() -> None:
    settled = job(
        JobStatus.FAILED,
        desired=DesiredState.STOPPED,
        failure={"code": "X"},
        failures={"count": 3},
        consecutive_failures=2,
        next_start_at_ms=9,
        restarts=7,
        started_at_ms=1,
        ended_at_ms=2,
        skip_lost_records=True,
        time_reset_after=6,
    )
    rows = Rows()
    made = requests.start(session(rows), settled, USER, "begin")
    assert (made.id, made.kind, made.status) == ("begin", OperationKind.START, OperationStatus.IN_PROGRESS)
    assert (made.requested_at_ms, made.requested_by, made.command_status) == (NOW_MS, "ann", None)
    assert (settled.desired, settled.status) == (DesiredState.RUNNING, JobStatus.SUBMITTING)
    assert (settled.failure, settled.failures, settled.time_reset_after) == (None,) * 3
    assert (settled.consecutive_failures, settled.next_start_at_ms, settled.restarts) == (0, 0, 0)
    assert (settled.started_at_ms, settled.ended_at_ms, settled.skip_lost_records) == (NOW_MS, None, False)
    event = rows.one(Event)
    assert (event.kind, event.actor, event.job_id, event.at_ms) == ("JOB_STARTED", "ann", "job", NOW_MS)


def test_a_start_that_resets_time_or_skips_records_says_after_which_attempt() -> None:
    settled = job(JobStatus.STOPPED)
    requests.start(session(Rows(number=6)), settled, USER, "begin", skip_lost_records=True, reset_time=True)
    assert (settled.skip_lost_records, settled.time_reset_after) == (True, 6)


@pytest.mark.parametrize("kind", STOPS)
def test_a_stop_is_a_command_to_the_active_attempt_and_its_operation_is_kept(kind: OperationKind) -> None:
    running, rows = job(), Rows(active())
    stop = requests.stop(session(rows), running, USER, "end", kind)
    assert (running.desired, running.status) == (DesiredState.STOPPED, JobStatus.SAVEPOINTING)
    assert (stop.id, stop.kind, stop.old_attempt) == ("end", kind, 4)
    assert (stop.command_status, stop.status) == (CommandStatus.IN_PROGRESS, OperationStatus.IN_PROGRESS)
    assert (stop.command_id, stop.command_kind, stop.savepoint_id) == ("end", CommandKind.STOP_WITH_SAVEPOINT, "end")
    assert stop.savepoint_owner is SnapshotOwner.USER
    assert (rows.one(Event).kind, rows.one(Event).details["operation_id"]) == ("STOP_REQUESTED", "end")


def test_a_stop_without_a_driver_waits_for_the_next_one() -> None:
    stop = requests.stop(session(Rows()), job(JobStatus.RESTARTING), USER, "end", OperationKind.STOP)
    assert stop.old_attempt == 0


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (JobStatus.RUNNING, OperationStatus.COMPLETED),
        (JobStatus.SLEEPING, OperationStatus.COMPLETED),
        (JobStatus.SUBMITTING, OperationStatus.CANCELLED),
        (JobStatus.RESTARTING, OperationStatus.CANCELLED),
    ],
)
def test_a_start_in_progress_ends_with_the_next_operation(status: JobStatus, ending: OperationStatus) -> None:
    rows = Rows(active())
    rows.running = start = Operation(
        id="begin", job_id="job", kind=OperationKind.START, status=OperationStatus.IN_PROGRESS
    )
    requests.stop(session(rows), job(status), USER, "end", OperationKind.STOP)
    assert (start.status, start.ended_at_ms, start.failure) == (ending, NOW_MS, None)


def test_a_cancel_takes_no_savepoint() -> None:
    running, rows = job(), Rows(active())
    made = requests.cancel(session(rows), running, USER, "away")
    assert (running.desired, running.status) == (DesiredState.CANCELLED, JobStatus.STOPPING)
    assert (made.id, made.kind, made.command_status) == ("away", OperationKind.CANCEL, None)
    assert rows.one(Event).kind == "JOB_CANCELLED"


@pytest.mark.parametrize(
    ("kind", "savepoint_id"), [(OperationKind.SAVEPOINT, "operation"), (OperationKind.CHECKPOINT, None)]
)
def test_only_a_savepoint_has_an_id_of_its_own(kind: OperationKind, savepoint_id: str | None) -> None:
    rows = Rows(active(), number=requests.SNAPSHOTS_MAX - 1)
    made = requests.snapshot(session(rows), job(), USER, "operation", kind)
    assert (made.command_kind, made.savepoint_id, made.old_attempt) == (CommandKind(kind), savepoint_id, 4)
    assert made.command_status is CommandStatus.IN_PROGRESS
    assert rows.one(Event).kind == f"{kind}_REQUESTED"


def test_a_job_and_its_driver_follow_a_revision_that_needs_no_restart() -> None:
    running, driver = job(), active()
    rows = Rows(driver)
    requests.adjust(session(rows), running, Revision(job_id="job", number=5), USER)
    assert (running.revision, driver.revision) == (5, 5)
    assert "revision 5 instead of 3" in rows.one(Event).message


@pytest.mark.parametrize(
    ("state", "autoscaler", "stays"),
    [
        (DriverState.SLEEPING, {"mode": "ACTIVE", "sleep_after_ms": 90_000}, True),
        (DriverState.SLEEPING, {"mode": "ACTIVE"}, False),
        (DriverState.SLEEPING, {"mode": "MONITORING", "sleep_after_ms": 90_000}, False),
        (DriverState.RUNNING, {"mode": "ACTIVE", "sleep_after_ms": 90_000}, False),
    ],
)
def test_a_sleeping_job_stays_asleep_if_its_new_settings_let_it_sleep(
    state: DriverState, autoscaler: dict[str, Any], stays: bool
) -> None:
    driver = active()
    driver.driver_state, driver.sleep_requested_at_ms = state, 1
    spec = {"artifact_id": "a", "parallelism": 1, "max_parallelism": 16, "autoscaler": autoscaler}
    requests.adjust(session(Rows(driver)), job(JobStatus.SLEEPING), Revision(job_id="job", number=5, spec=spec), USER)
    assert (driver.sleep_requested_at_ms is not None) == stays


def test_a_settled_job_starts_with_the_selected_revision() -> None:
    settled = job(JobStatus.STOPPED)
    requests.select_revision(session(Rows()), settled, Revision(job_id="job", number=2))
    assert settled.revision == 2
    with pytest.raises(JobStatusConflictError):
        requests.select_revision(session(Rows()), job(), Revision(job_id="job", number=2))


def test_a_change_is_cancelled_once_and_not_when_it_is_over() -> None:
    def change(**columns: Any) -> Operation:
        given = {"status": OperationStatus.IN_PROGRESS, "phase": ChangePhase.SAVEPOINT, **columns}
        return Operation(
            id="c", job_id="job", kind=OperationKind.RESCALE, from_parallelism=1, to_parallelism=2, **given
        )

    wanted, rows = change(), Rows()
    for _ in range(2):
        requests.cancel_operation(session(rows), wanted, USER)
    assert wanted.cancel_requested_at_ms == NOW_MS
    assert (rows.one(Event).kind, rows.one(Event).details) == ("RESCALE_CANCEL_REQUESTED", {"operation_id": "c"})
    for over in (
        change(status=OperationStatus.COMPLETED, cancel_requested_at_ms=1),
        change(phase=ChangePhase.ROLL_BACK),
    ):
        with pytest.raises(OperationNotCancellableError):
            requests.cancel_operation(session(rows), over, USER)


def test_a_change_that_waits_for_an_approval_is_cancelled_at_once() -> None:
    waiting = Operation(id="c", job_id="job", kind=OperationKind.UPGRADE, status=OperationStatus.PENDING_APPROVAL)
    requests.cancel_operation(session(Rows()), waiting, USER)
    assert (waiting.status, waiting.ended_at_ms) == (OperationStatus.CANCELLED, NOW_MS)
    assert waiting.cancel_requested_at_ms is None
    with pytest.raises(OperationNotCancellableError):
        requests.cancel_operation(session(Rows()), waiting, USER)


@pytest.mark.parametrize("kind", [OperationKind.START, OperationKind.STOP, OperationKind.SAVEPOINT])
def test_only_a_change_can_be_cancelled(kind: OperationKind) -> None:
    made = Operation(id="c", job_id="job", kind=kind, status=OperationStatus.IN_PROGRESS)
    with pytest.raises(OperationNotCancellableError, match=kind):
        requests.cancel_operation(session(Rows()), made, USER)


def taking(kind: OperationKind) -> Operation:
    given = {"status": OperationStatus.IN_PROGRESS, "command_status": CommandStatus.IN_PROGRESS, "old_attempt": 4}
    return Operation(id="c", job_id="job", kind=kind, requested_at_ms=1, **given)


def test_the_first_result_of_a_command_stays() -> None:
    rows, made = Rows(), taking(OperationKind.SAVEPOINT)
    settle = operation_results.settle_command
    settle(session(rows), made, status=CommandStatus.COMPLETED, location="file:///here", checkpoint_id=8)
    settle(session(rows), made, status=CommandStatus.FAILED, failed={"code": "X"})
    assert (made.status, made.location, made.checkpoint_id) == (OperationStatus.COMPLETED, "file:///here", 8)
    assert (made.ended_at_ms, made.failure) == (NOW_MS, None)
    event = rows.one(Event)
    assert (event.kind, event.actor, event.message) == ("SAVEPOINT_COMPLETED", "attempt 4", "savepoint completed")
    assert event.details == {"operation_id": "c", "location": "file:///here", "failure_code": None}


def test_a_failed_command_keeps_its_failure() -> None:
    rows, made = Rows(), taking(OperationKind.CHECKPOINT)
    operation_results.settle_command(session(rows), made, status=CommandStatus.FAILED, failed={"code": "X"})
    assert (made.status, made.failure, made.location) == (OperationStatus.FAILED, {"code": "X"}, None)
    assert (rows.one(Event).kind, rows.one(Event).details["failure_code"]) == ("CHECKPOINT_FAILED", "X")


@pytest.mark.parametrize("kind", [OperationKind.STOP, OperationKind.RESCALE])
def test_an_operation_goes_on_after_its_command(kind: OperationKind) -> None:
    made = taking(kind)
    operation_results.settle_command(session(Rows()), made, status=CommandStatus.COMPLETED, location="file:///here")
    assert (made.status, made.command_status) == (OperationStatus.IN_PROGRESS, CommandStatus.COMPLETED)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job `job` has the revisions up to 6, the attempts up to 4, and revision 3 with parallelism 2."""
    metrics = {"batches": 1, "pending_records": 5}
    latest = Attempt(job_id="job", number=4, metrics=metrics)
    current = Revision(job_id="job", number=3, spec={"parallelism": 2})
    monkeypatch.setattr(requests.revisions, "next_number", lambda _, job_id: {"job": 7}[job_id])
    monkeypatch.setattr(requests.revisions, "current", lambda _, of: {"job": current}[of.id])
    monkeypatch.setattr(requests.attempts, "latest", lambda _, job_id: {"job": latest}.get(job_id))


@pytest.mark.usefixtures("stored")
def test_a_revision_has_the_next_number_and_the_job_keeps_its_present_one() -> None:
    rows, running = Rows(), job()
    specification = JobSpec(artifact_id="program", parallelism=6, parameters={"input": "/in"}, secrets=["KEY"])
    made = requests.revise(session(rows), running, specification, USER, "faster")
    assert rows.one(Revision) is made
    assert spec_of(made) == specification
    assert (made.job_id, made.number, made.created_at_ms, made.created_by) == ("job", 7, NOW_MS, "ann")
    assert (made.message, running.revision) == ("faster", 3)
    event = rows.one(Event)
    assert (event.kind, event.message, event.job_id) == ("REVISION_CREATED", "revision 7: faster", "job")


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("kind", "status"), [(OperationKind.RESCALE, JobStatus.RESCALING), (OperationKind.ROLLBACK, JobStatus.UPGRADING)]
)
def test_a_change_begins_with_what_the_job_is_and_what_it_becomes(kind: OperationKind, status: JobStatus) -> None:
    rows, running = Rows(), job()
    change = requests.Change(
        kind,
        Revision(job_id="job", number=6, spec={"artifact_id": "a", "parallelism": 8, "max_parallelism": 16}),
        UpgradeMode.LAST_STATE,
        allow_non_restored_state=True,
        rewind_to="file:///savepoint",
    )
    made = requests.change(session(rows), running, USER, "c", change)
    assert rows.one(Operation) is made
    assert (made.id, made.job_id, made.kind, made.upgrade_mode) == ("c", "job", kind, UpgradeMode.LAST_STATE)
    assert (made.from_revision, made.to_revision) == (3, 6)
    assert (made.from_parallelism, made.to_parallelism, made.old_attempt) == (2, 8, 4)
    assert (made.allow_non_restored_state, made.rewind_to) == (True, "file:///savepoint")
    assert (made.status, made.phase, made.requested_at_ms) == (
        OperationStatus.IN_PROGRESS,
        ChangePhase.REQUESTED,
        NOW_MS,
    )
    assert made.phases == [{"phase": "REQUESTED", "started_at_ms": NOW_MS, "ended_at_ms": None}]
    assert made.metrics_before is not None
    assert made.metrics_before["lag_records"] == 5
    assert (running.status, running.revision) == (status, 3), "the job has the new revision once it runs it"
    event = rows.one(Event)
    assert (event.kind, event.details, event.actor) == (f"{kind}_REQUESTED", {"operation_id": "c"}, "ann")


@pytest.mark.usefixtures("stored")
def test_a_change_takes_the_state_through_a_savepoint_and_drops_none_of_it_unless_it_is_asked_to() -> None:
    to = Revision(job_id="job", number=6, spec={"parallelism": 8})
    made = requests.change(session(Rows()), job(), USER, "c", requests.Change(OperationKind.UPGRADE, to))
    assert (made.upgrade_mode, made.allow_non_restored_state, made.rewind_to) == (UpgradeMode.SAVEPOINT, False, None)


@pytest.mark.parametrize(
    ("status", "kind", "mode", "driver", "error"),
    [
        (JobStatus.RUNNING, OperationKind.RESCALE, UpgradeMode.SAVEPOINT, True, None),
        (JobStatus.RUNNING, OperationKind.UPGRADE, UpgradeMode.SAVEPOINT, True, None),
        (JobStatus.RUNNING, OperationKind.UPGRADE, UpgradeMode.LAST_STATE, False, None),
        (JobStatus.RESTARTING, OperationKind.UPGRADE, UpgradeMode.LAST_STATE, False, None),
        (JobStatus.RESTARTING, OperationKind.ROLLBACK, UpgradeMode.LAST_STATE, False, None),
        (JobStatus.RUNNING, OperationKind.RESCALE, UpgradeMode.SAVEPOINT, False, JobStatusConflictError),
        (JobStatus.RUNNING, OperationKind.UPGRADE, UpgradeMode.STATELESS, False, JobStatusConflictError),
        (JobStatus.RESTARTING, OperationKind.UPGRADE, UpgradeMode.SAVEPOINT, True, JobStatusConflictError),
        (JobStatus.RESTARTING, OperationKind.RESCALE, UpgradeMode.LAST_STATE, True, JobStatusConflictError),
        (JobStatus.STOPPED, OperationKind.UPGRADE, UpgradeMode.LAST_STATE, True, JobStatusConflictError),
    ],
)
def test_a_change_needs_a_running_job_with_a_driver_and_one_from_the_last_state_neither(
    status: JobStatus,
    kind: OperationKind,
    mode: UpgradeMode,
    driver: bool,
    error: type[Exception] | None,
) -> None:
    rows = Rows(active() if driver else None)
    if error is None:
        requests.require_changeable(session(rows), job(status), kind, mode)
    else:
        with pytest.raises(error):
            requests.require_changeable(session(rows), job(status), kind, mode)


@pytest.mark.parametrize("status", [JobStatus.RESCALING, JobStatus.UPGRADING])
def test_a_job_that_is_being_changed_is_changed_stopped_and_deleted_after_that(status: JobStatus) -> None:
    known = Rows(active())
    known.running = Operation(id="other", job_id="job", kind=OperationKind.UPGRADE)
    rows = session(known)
    with pytest.raises(OperationInProgressError, match="by other"):
        requests.require_changeable(rows, job(status), OperationKind.UPGRADE, UpgradeMode.LAST_STATE)
    with pytest.raises(OperationInProgressError, match="by other"):
        requests.require_deletable(rows, job(status))
    with pytest.raises(OperationInProgressError, match="by other"):
        requests.stop(rows, job(status), USER, "end", OperationKind.STOP)
    with pytest.raises(JobStatusConflictError):
        requests.start(rows, job(status), USER, "begin")


def test_a_job_has_so_many_pending_snapshots_and_not_one_more() -> None:
    rows = Rows(active(), number=requests.SNAPSHOTS_MAX)
    with pytest.raises(TooManyInFlightError):
        requests.snapshot(session(rows), job(), USER, "operation", OperationKind.CHECKPOINT)
    assert rows.added == []


@pytest.mark.parametrize("status", list(JobStatus))
def test_only_a_job_that_does_not_run_can_be_deleted(status: JobStatus) -> None:
    settled = {JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FINISHED, JobStatus.FAILED}
    try:
        requests.require_deletable(session(Rows()), job(status))
    except (JobStatusConflictError, OperationInProgressError):
        assert status not in settled
    else:
        assert status in settled


def test_a_name_tells_who_requested_a_change_when_the_event_of_the_request_was_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests.events, "first_of_operation", lambda *_: None)
    waiting = Operation(
        id="c",
        job_id="job",
        kind=OperationKind.UPGRADE,
        status=OperationStatus.PENDING_APPROVAL,
        from_revision=3,
        requested_by="ann",
    )
    with pytest.raises(OwnApprovalError):
        requests.approve(session(Rows()), job(), USER, waiting)
    waiting.requested_by = "ben"
    requests.approve(session(Rows()), job(), USER, waiting)
    assert (waiting.approved_by, waiting.approved_at_ms) == ("ann", NOW_MS)


@pytest.mark.parametrize(
    ("columns", "requester_id", "error"),
    [
        ({}, "another id", None),
        ({}, "id", OwnApprovalError),
        ({"requested_by": "ann"}, "another id", OwnApprovalError),
        ({"from_revision": 2}, "another id", ApprovalRefusedError),
        ({"status": OperationStatus.CANCELLED}, "another id", ApprovalRefusedError),
    ],
    ids=["of another user", "of a user with another name now", "of a namesake", "of another revision", "cancelled"],
)
def test_a_change_of_the_present_revision_that_waits_is_approved_by_another_user(
    monkeypatch: pytest.MonkeyPatch, columns: dict[str, Any], requester_id: str, error: type[Exception] | None
) -> None:
    request = Event(actor_id=requester_id)
    monkeypatch.setattr(requests.events, "first_of_operation", lambda _, *key: request if key == ("job", "c") else None)
    given = {"status": OperationStatus.PENDING_APPROVAL, "from_revision": 3, "requested_by": "ben", **columns}
    waiting = Operation(id="c", job_id="job", kind=OperationKind.UPGRADE, **given)
    if error is None:
        requests.approve(session(Rows()), job(), USER, waiting)
        assert waiting.approved_by == "ann"
    else:
        with pytest.raises(error):
            requests.approve(session(Rows()), job(), USER, waiting)
        assert waiting.approved_by is None


def test_a_phase_that_has_ended_keeps_its_end_and_none_waits_any_more() -> None:
    phases = [
        {"phase": "REQUESTED", "started_at_ms": 1, "ended_at_ms": 3},
        {"phase": "SAVEPOINT", "started_at_ms": 3, "ended_at_ms": None, "waits_for": {"code": "X"}},
    ]
    assert operation_results.ended(phases, 9) == [
        {"phase": "REQUESTED", "started_at_ms": 1, "ended_at_ms": 3},
        {"phase": "SAVEPOINT", "started_at_ms": 3, "ended_at_ms": 9},
    ]
    assert phases[1]["ended_at_ms"] is None, "a row is changed by a new value"


WHY = {"code": "X", "message": "disk full"}


@pytest.mark.parametrize(
    ("kind", "command", "why", "job_status", "ending"),
    [
        (OperationKind.CANCEL, None, None, "STOPPED", ("cancel: completed", None)),
        (OperationKind.CANCEL, None, WHY, "FAILED", ("cancel: completed", None)),
        (OperationKind.STOP, CommandStatus.COMPLETED, None, "STOPPED", ("stop: completed", None)),
        (OperationKind.STOP, CommandStatus.COMPLETED, WHY, "FAILED", ("stop: failed: X", WHY)),
        (OperationKind.STOP, CommandStatus.FAILED, None, "STOPPED", ("stop: failed: JOB_ENDED", "the job is STOPPED")),
        (OperationKind.START, None, None, "FINISHED", ("start: completed", None)),
        (OperationKind.START, None, None, "STOPPED", ("start: cancelled", None)),
        (OperationKind.START, None, WHY, "FAILED", ("start: failed: X", WHY)),
        (OperationKind.RESTART, None, None, "FINISHED", ("restart of revision 7: failed: JOB_ENDED", "FINISHED")),
    ],
)
def test_an_operation_that_goes_on_ends_with_its_job_as_what_was_asked_for_came_about(
    kind: OperationKind,
    command: CommandStatus | None,
    why: dict[str, str] | None,
    job_status: str,
    ending: tuple[str, Any],
) -> None:
    made, rows = taking(kind), Rows()
    made.command_status, made.to_revision = command, 7
    operation_results.end_with_job(session(rows), made, why, job_status=job_status)
    message, failure = ending
    [event] = rows.added
    assert (event.job_id, event.at_ms, event.message) == ("job", NOW_MS, message)
    assert (event.kind, event.details["operation_id"]) == (f"{kind}_{made.status}", "c")
    assert (made.ended_at_ms, made.status.value) == (NOW_MS, message.split(": ")[1].upper())
    if isinstance(failure, str):
        assert made.failure is not None
        assert (made.failure["code"], made.failure["message"].endswith(failure)) == ("JOB_ENDED", True)
    else:
        assert made.failure == failure


def test_an_operation_whose_job_ends_before_the_command_is_done_has_a_failed_command() -> None:
    rows, made = Rows(), taking(OperationKind.STOP)
    operation_results.end_with_job(session(rows), made, WHY, job_status="FAILED")
    assert [event.kind for event in rows.added] == ["STOP_WITH_SAVEPOINT_FAILED", "STOP_FAILED"]
    assert (made.command_status, made.status, made.failure) == (CommandStatus.FAILED, OperationStatus.FAILED, WHY)
    rows, made = Rows(), taking(OperationKind.SAVEPOINT)
    operation_results.end_with_job(session(rows), made, None, job_status="STOPPED")
    assert [event.kind for event in rows.added] == ["SAVEPOINT_FAILED"], "a snapshot ends with its command"
    assert made.failure is not None
    assert (made.status, made.failure["code"]) == (OperationStatus.FAILED, "JOB_ENDED")


@pytest.mark.parametrize(
    ("status", "why", "expected"),
    [
        (OperationStatus.COMPLETED, None, None),
        (OperationStatus.CANCELLED, WHY, None),
        (OperationStatus.FAILED, WHY, {"code": "FIRST"}),
        (OperationStatus.ROLLED_BACK, None, {"code": "FIRST"}),
    ],
)
def test_an_operation_keeps_its_first_failure_unless_it_ends_well(
    status: OperationStatus, why: dict[str, str] | None, expected: dict[str, str] | None
) -> None:
    rows, made = Rows(), taking(OperationKind.UPGRADE)
    made.command_status, made.failure = CommandStatus.COMPLETED, {"code": "FIRST"}
    made.phases = [{"phase": "VERIFY", "started_at_ms": 1, "ended_at_ms": None}]
    operation_results.end(session(rows), made, status, why)
    assert (made.failure, made.status, made.ended_at_ms) == (expected, status, NOW_MS)
    assert made.phases == [{"phase": "VERIFY", "started_at_ms": 1, "ended_at_ms": NOW_MS}]
    assert made.command_status is CommandStatus.COMPLETED
    assert rows.one(Event).message.endswith(": FIRST") is (expected is not None)
