"""A request of a user changes exactly the columns of a job and of a command that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import (
    ChangeNotCancellableError,
    JobStatusConflictError,
    RescaleInProgressError,
    TooManyInFlightError,
    UpgradeInProgressError,
)
from keyscale.api.lifecycle import intents
from keyscale.api.specification import Specification
from keyscale.db.models import Attempt, Change, Command, Event, Job, Revision
from keyscale.db.statuses import (
    AttemptStage,
    ChangeKind,
    ChangePhase,
    ChangeStatus,
    CommandKind,
    CommandStatus,
    DesiredState,
    JobStatus,
    Role,
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
        self._active, self._number = active, number

    def add(self, row: Any) -> None:
        self.added.append(row)

    def flush(self) -> None:
        """Sends nothing."""

    def scalars(self, _: Any) -> Rows:
        return self

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
    monkeypatch.setattr(intents, "now_ms", lambda: NOW_MS)


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
        stop_operation_id="stop",
        consecutive_failures=2,
        next_start_at_ms=9,
        restarts=7,
        started_at_ms=1,
        ended_at_ms=2,
        skip_lost_records=True,
        time_reset_after=6,
    )
    rows = Rows()
    intents.start(session(rows), settled, USER)
    assert (settled.desired, settled.status) == (DesiredState.RUNNING, JobStatus.SUBMITTING)
    assert (settled.failure, settled.failures, settled.stop_operation_id, settled.time_reset_after) == (None,) * 4
    assert (settled.consecutive_failures, settled.next_start_at_ms, settled.restarts) == (0, 0, 0)
    assert (settled.started_at_ms, settled.ended_at_ms, settled.skip_lost_records) == (NOW_MS, None, False)
    event = rows.one(Event)
    assert (event.kind, event.actor, event.job_id, event.at_ms) == ("JOB_STARTED", "ann", "job", NOW_MS)


def test_a_start_that_resets_time_or_skips_records_says_after_which_attempt() -> None:
    settled = job(JobStatus.STOPPED)
    intents.start(session(Rows(number=6)), settled, USER, skip_lost_records=True, reset_time=True)
    assert (settled.skip_lost_records, settled.time_reset_after) == (True, 6)


@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_is_a_command_to_the_active_attempt_and_its_operation_is_kept(drain: bool) -> None:
    running, rows = job(), Rows(active())
    command = intents.stop(session(rows), running, USER, "end", drain=drain)
    assert (running.desired, running.status) == (DesiredState.STOPPED, JobStatus.SAVEPOINTING)
    assert running.stop_operation_id == "end"
    assert (command.id, command.kind, command.attempt) == ("end", CommandKind.STOP_WITH_SAVEPOINT, 4)
    assert (command.drain, command.savepoint_id, command.status) == (drain, "end", CommandStatus.IN_PROGRESS)
    assert (rows.one(Event).kind, rows.one(Event).details["operation_id"]) == ("STOP_REQUESTED", "end")


def test_a_stop_without_a_driver_waits_for_the_next_one() -> None:
    command = intents.stop(session(Rows()), job(JobStatus.RESTARTING), USER, "end", drain=False)
    assert command.attempt == 0


def test_a_cancel_takes_no_savepoint() -> None:
    running, rows = job(), Rows(active())
    intents.cancel(session(rows), running, USER)
    assert (running.desired, running.status) == (DesiredState.CANCELLED, JobStatus.STOPPING)
    assert [type(row) for row in rows.added] == [Event]


@pytest.mark.parametrize(
    ("kind", "savepoint_id"), [(CommandKind.SAVEPOINT, "operation"), (CommandKind.CHECKPOINT, None)]
)
def test_only_a_savepoint_has_an_id_of_its_own(kind: CommandKind, savepoint_id: str | None) -> None:
    rows = Rows(active(), number=intents.SNAPSHOTS_MAX - 1)
    command = intents.snapshot(session(rows), job(), USER, "operation", kind)
    assert (command.kind, command.savepoint_id, command.attempt, command.drain) == (kind, savepoint_id, 4, False)
    assert rows.one(Event).kind == f"{kind}_REQUESTED"


def test_the_command_of_a_change_takes_the_savepoint_of_the_change() -> None:
    command = intents.command_stop(session(Rows()), "job", 4, "rescale:c", "c")
    assert (command.id, command.savepoint_id, command.attempt) == ("rescale:c", "c", 4)
    assert command.kind is CommandKind.STOP_WITH_SAVEPOINT


def test_a_job_and_its_driver_follow_a_revision_that_needs_no_restart() -> None:
    running, driver = job(), active()
    rows = Rows(driver)
    intents.adjust(session(rows), running, Revision(job_id="job", number=5), USER)
    assert (running.revision, driver.revision) == (5, 5)
    assert "revision 5 instead of 3" in rows.one(Event).message


def test_a_settled_job_starts_with_the_selected_revision() -> None:
    settled = job(JobStatus.STOPPED)
    intents.select_revision(session(Rows()), settled, Revision(job_id="job", number=2))
    assert settled.revision == 2
    with pytest.raises(JobStatusConflictError):
        intents.select_revision(session(Rows()), job(), Revision(job_id="job", number=2))


def test_a_change_is_cancelled_once_and_not_when_it_is_over() -> None:
    def change(**columns: Any) -> Change:
        given = {"status": ChangeStatus.IN_PROGRESS, "phase": ChangePhase.SAVEPOINT, **columns}
        return Change(id="c", kind=ChangeKind.RESCALE, from_parallelism=1, to_parallelism=2, **given)

    wanted, rows = change(), Rows()
    for _ in range(2):
        intents.cancel_change(session(rows), job(), wanted, USER)
    assert wanted.cancel_requested_at_ms == NOW_MS
    assert (rows.one(Event).kind, rows.one(Event).details) == ("RESCALE_CANCELLED", {"change_id": "c"})
    for over in (change(status=ChangeStatus.COMPLETED, cancel_requested_at_ms=1), change(phase=ChangePhase.ROLL_BACK)):
        with pytest.raises(ChangeNotCancellableError):
            intents.cancel_change(session(rows), job(), over, USER)


def test_the_first_result_of_a_command_stays() -> None:
    rows = Rows()
    command = Command(
        id="c", job_id="job", attempt=4, kind=CommandKind.SAVEPOINT, status=CommandStatus.IN_PROGRESS, created_at_ms=1
    )
    intents.settle_command(
        session(rows), command, status=CommandStatus.COMPLETED, location="file:///here", checkpoint_id=8
    )
    intents.settle_command(session(rows), command, status=CommandStatus.FAILED, failure={"code": "X"})
    assert (command.status, command.location, command.checkpoint_id) == (CommandStatus.COMPLETED, "file:///here", 8)
    assert (command.ended_at_ms, command.failure) == (NOW_MS, None)
    event = rows.one(Event)
    assert (event.kind, event.actor, event.message) == ("SAVEPOINT_COMPLETED", "attempt 4", "savepoint completed")
    assert event.details == {"operation_id": "c", "location": "file:///here", "failure_code": None}


def test_a_failed_command_keeps_its_failure() -> None:
    rows = Rows()
    command = Command(
        id="c", job_id="job", attempt=4, kind=CommandKind.CHECKPOINT, status=CommandStatus.IN_PROGRESS, created_at_ms=1
    )
    intents.settle_command(session(rows), command, status=CommandStatus.FAILED, failure={"code": "X"})
    assert (command.status, command.failure, command.location) == (CommandStatus.FAILED, {"code": "X"}, None)
    assert (rows.one(Event).kind, rows.one(Event).details["failure_code"]) == ("CHECKPOINT_FAILED", "X")


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job `job` has the revisions up to 6, the attempts up to 4, and revision 3 with parallelism 2."""
    metrics = {"batches": 1, "pending_records": 5}
    latest = Attempt(job_id="job", number=4, metrics=metrics)
    current = Revision(job_id="job", number=3, parallelism=2)
    monkeypatch.setattr(intents.revisions, "next_number", lambda _, job_id: {"job": 7}[job_id])
    monkeypatch.setattr(intents.revisions, "current", lambda _, of: {"job": current}[of.id])
    monkeypatch.setattr(intents.attempts, "latest", lambda _, job_id: {"job": latest}.get(job_id))


@pytest.mark.usefixtures("stored")
def test_a_revision_has_the_next_number_and_the_job_keeps_its_present_one() -> None:
    rows, running = Rows(), job()
    specification = Specification("program", 6, parameters={"input": "/in"}, secrets=["KEY"])
    made = intents.revise(session(rows), running, specification, USER, "faster")
    assert rows.one(Revision) is made
    assert Specification.of(made) == specification
    assert (made.job_id, made.number, made.created_at_ms, made.created_by) == ("job", 7, NOW_MS, "ann")
    assert (made.message, running.revision) == ("faster", 3)
    event = rows.one(Event)
    assert (event.kind, event.message, event.job_id) == ("REVISION_CREATED", "revision 7: faster", "job")


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("kind", "status"), [(ChangeKind.RESCALE, JobStatus.RESCALING), (ChangeKind.ROLLBACK, JobStatus.UPGRADING)]
)
def test_a_change_begins_with_what_the_job_is_and_what_it_becomes(kind: ChangeKind, status: JobStatus) -> None:
    rows, running = Rows(), job()
    made = intents.change(
        session(rows),
        running,
        USER,
        "c",
        Revision(job_id="job", number=6, parallelism=8),
        kind=kind,
        mode=UpgradeMode.LAST_STATE,
        allow_non_restored_state=True,
        rewind_to="file:///savepoint",
    )
    assert rows.one(Change) is made
    assert (made.id, made.job_id, made.kind, made.upgrade_mode) == ("c", "job", kind, UpgradeMode.LAST_STATE)
    assert (made.from_revision, made.to_revision) == (3, 6)
    assert (made.from_parallelism, made.to_parallelism, made.old_attempt) == (2, 8, 4)
    assert (made.allow_non_restored_state, made.rewind_to) == (True, "file:///savepoint")
    assert (made.status, made.phase, made.requested_at_ms) == (
        ChangeStatus.IN_PROGRESS,
        ChangePhase.REQUESTED,
        NOW_MS,
    )
    assert made.phases == [{"phase": "REQUESTED", "started_at_ms": NOW_MS, "ended_at_ms": None}]
    assert made.figures_before is not None
    assert made.figures_before["lag_records"] == 5
    assert (running.status, running.revision) == (status, 3), "the job has the new revision once it runs it"
    event = rows.one(Event)
    assert (event.kind, event.details, event.actor) == (f"{kind}_REQUESTED", {"change_id": "c"}, "ann")


@pytest.mark.usefixtures("stored")
def test_a_change_takes_the_state_through_a_savepoint_and_drops_none_of_it_unless_it_is_asked_to() -> None:
    to = Revision(job_id="job", number=6, parallelism=8)
    made = intents.change(session(Rows()), job(), USER, "c", to, kind=ChangeKind.UPGRADE)
    assert (made.upgrade_mode, made.allow_non_restored_state, made.rewind_to) == (UpgradeMode.SAVEPOINT, False, None)


@pytest.mark.parametrize(
    ("status", "kind", "mode", "driver", "error"),
    [
        (JobStatus.RUNNING, ChangeKind.RESCALE, UpgradeMode.SAVEPOINT, True, None),
        (JobStatus.RUNNING, ChangeKind.UPGRADE, UpgradeMode.SAVEPOINT, True, None),
        (JobStatus.RUNNING, ChangeKind.UPGRADE, UpgradeMode.LAST_STATE, False, None),
        (JobStatus.RESTARTING, ChangeKind.UPGRADE, UpgradeMode.LAST_STATE, False, None),
        (JobStatus.RESTARTING, ChangeKind.ROLLBACK, UpgradeMode.LAST_STATE, False, None),
        (JobStatus.RUNNING, ChangeKind.RESCALE, UpgradeMode.SAVEPOINT, False, JobStatusConflictError),
        (JobStatus.RUNNING, ChangeKind.UPGRADE, UpgradeMode.STATELESS, False, JobStatusConflictError),
        (JobStatus.RESTARTING, ChangeKind.UPGRADE, UpgradeMode.SAVEPOINT, True, JobStatusConflictError),
        (JobStatus.RESTARTING, ChangeKind.RESCALE, UpgradeMode.LAST_STATE, True, JobStatusConflictError),
        (JobStatus.STOPPED, ChangeKind.UPGRADE, UpgradeMode.LAST_STATE, True, JobStatusConflictError),
    ],
)
def test_a_change_needs_a_running_job_with_a_driver_and_one_from_the_last_state_neither(  # noqa: PLR0917 - a table
    monkeypatch: pytest.MonkeyPatch,
    status: JobStatus,
    kind: ChangeKind,
    mode: UpgradeMode,
    driver: bool,
    error: type[Exception] | None,
) -> None:
    monkeypatch.setattr(intents.changes, "running", lambda *_: None)
    rows = Rows(active() if driver else None)
    if error is None:
        intents.require_changeable(session(rows), job(status), kind, mode)
    else:
        with pytest.raises(error):
            intents.require_changeable(session(rows), job(status), kind, mode)


@pytest.mark.parametrize(
    ("status", "error"),
    [(JobStatus.RESCALING, RescaleInProgressError), (JobStatus.UPGRADING, UpgradeInProgressError)],
)
def test_a_job_that_is_being_changed_is_changed_stopped_and_deleted_after_that(
    monkeypatch: pytest.MonkeyPatch, status: JobStatus, error: type[Exception]
) -> None:
    running = Change(id="other", job_id="job")
    monkeypatch.setattr(intents.changes, "running", lambda _, job_id: {"job": running}[job_id])
    rows = session(Rows(active()))
    with pytest.raises(error, match="by other"):
        intents.require_changeable(rows, job(status), ChangeKind.UPGRADE, UpgradeMode.LAST_STATE)
    with pytest.raises(error, match="by other"):
        intents.require_deletable(rows, job(status))
    with pytest.raises(error, match="by other"):
        intents.stop(rows, job(status), USER, "end", drain=False)
    with pytest.raises(JobStatusConflictError):
        intents.start(rows, job(status), USER)


def test_a_job_has_so_many_pending_snapshots_and_not_one_more() -> None:
    rows = Rows(active(), number=intents.SNAPSHOTS_MAX)
    with pytest.raises(TooManyInFlightError):
        intents.snapshot(session(rows), job(), USER, "operation", CommandKind.CHECKPOINT)
    assert rows.added == []


@pytest.mark.parametrize("status", list(JobStatus))
def test_only_a_job_that_does_not_run_can_be_deleted(status: JobStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents.changes, "running", lambda *_: None)
    settled = {JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FINISHED, JobStatus.FAILED}
    try:
        intents.require_deletable(session(Rows()), job(status))
    except (JobStatusConflictError, RescaleInProgressError, UpgradeInProgressError):
        assert status not in settled
    else:
        assert status in settled
