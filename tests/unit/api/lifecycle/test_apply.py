"""Each step changes what it is about of a job, its attempts, its change and its commands, and nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keyscale.api.access.tokens import reserved_token, token_sha256
from keyscale.api.lifecycle import apply as apply_module
from keyscale.api.lifecycle import job_transaction, operation_results, steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.change_phases import CANCELLED
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.restoring import Restore
from keyscale.api.lifecycle.steps import Cause
from keyscale.db.event_kinds import EVENT_KINDS, notification_of
from keyscale.db.models import Attempt, Checkpoint, Job, Operation, Revision
from keyscale.db.repositories import attempts, checkpoints, events, exceptions, operations, replicas, series
from keyscale.jobs.protocol.messages import DriverMetrics, FailureHistory
from keyscale.state.documents.job_counters import JobCounters
from keyscale.vocabulary import (
    CHANGES,
    STOPS,
    AttemptStage,
    ChangePhase,
    ClaimMode,
    CommandKind,
    CommandStatus,
    DesiredState,
    JobStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
    RestoreMode,
    UpgradeMode,
)

NOW_MS = 100_000
FAILURE = {"code": "X", "message": "it broke"}
SAVEPOINT, LATEST = "file:///store/savepoint.json", "file:///store/latest.json"
ACTIVE, STANDBY, ENDED = AttemptStage.ACTIVE, AttemptStage.STANDBY, AttemptStage.ENDED
RESERVED = AttemptStage.RESERVED


class Stored:
    """The rows of one job, in place of a session and of the queries of the repositories."""

    def __init__(self) -> None:
        self.job = Job(
            id="job",
            name="flights",
            status=JobStatus.RUNNING,
            desired=DesiredState.RUNNING,
            revision=1,
            restarts=5,
            consecutive_failures=0,
            next_start_at_ms=0,
        )
        self.attempts: dict[int, Attempt] = {}
        self.operations: dict[str, Operation] = {}
        self.latest: dict[int | None, Checkpoint] = {None: Checkpoint(checkpoint_id=9, external_path=LATEST)}
        self.unfinished = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.points: list[dict[str, Any]] = []
        self.exceptions: list[tuple[int, str]] = []

    def add(self, row: Attempt) -> None:
        self.attempts[row.number] = row

    def flush(self) -> None:
        active = [attempt for attempt in self.attempts.values() if attempt.stage is ACTIVE]
        assert len(active) < 2, "two attempts are never active, and a unique index holds it"

    def get_one(self, kind: type[Revision], key: tuple[str, int]) -> Revision:
        assert (kind, key[0]) == (Revision, "job")
        return Revision(job_id="job", number=key[1], spec={"parallelism": 10 * key[1]})

    def attempt(self, number: int, stage: AttemptStage = ACTIVE, **columns: Any) -> Attempt:
        made = Attempt(job_id="job", number=number, stage=stage, reaped=False, **columns)
        self.attempts[number] = made
        return made

    def operation(self, operation_id: str, kind: OperationKind, attempt: int = 1, **columns: Any) -> Operation:
        given = {"status": OperationStatus.IN_PROGRESS, "command_status": CommandStatus.IN_PROGRESS, **columns}
        made = Operation(id=operation_id, job_id="job", kind=kind, old_attempt=attempt, **given)
        self.operations[operation_id] = made
        return made

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def begin(self, kind: OperationKind = OperationKind.UPGRADE, **columns: Any) -> Operation:
        given = {
            "status": OperationStatus.IN_PROGRESS,
            "phase": ChangePhase.REQUESTED,
            "phases": [{"phase": "REQUESTED", "started_at_ms": 1, "ended_at_ms": None}],
            "from_revision": 1,
            "to_revision": 2,
            "from_parallelism": 10,
            "to_parallelism": 20,
            "upgrade_mode": UpgradeMode.SAVEPOINT,
            "allow_non_restored_state": False,
            "command_status": None,
        }
        return self.operation("c", kind, **{**given, **columns})

    def queries(self) -> dict[Any, dict[str, Any]]:
        """Returns what takes the place of the functions of the repositories, by their modules."""
        return {
            attempts: {
                "find": lambda _, job_id, number: self.attempts.get(number) if job_id == "job" else None,
                "of_stage": self._of_stage,
                "all_of_stage": self._all_of_stage,
                "next_number": lambda _, job_id: max(self.attempts, default=0) + 1 if job_id == "job" else 0,
                "find_restored": self._find_restored,
                "newest_counted": lambda session, job_id: self._counted_before(session, job_id, 1000),
                "counted_before": self._counted_before,
                "lock_unended": lambda _, job_id: [job_id],
            },
            operations: {"running": self._running, "pending": self._pending, "in_progress": self._in_progress},
            checkpoints: {"latest_completed": self._latest_completed, "fail_unfinished": self._fail_unfinished},
            events: {"record": self._note_event},
            exceptions: {"record": self._note_exception},
            replicas: {"shared_key": lambda _: "key"},
            series: {"store": self._store},
        }

    def _of_stage(self, _: Any, job_id: str, stage: AttemptStage) -> Attempt | None:
        return next((each for each in self.attempts.values() if job_id == "job" and each.stage is stage), None)

    def _all_of_stage(self, _: Any, job_id: str, stage: AttemptStage) -> list[Attempt]:
        found = [each for _, each in sorted(self.attempts.items()) if each.stage is stage]
        return found if job_id == "job" else []

    def _find_restored(self, _: Any, job_id: str, restore_id: str) -> Attempt | None:
        done = (each for each in self.attempts.values() if each.restored_at_ms and each.restore_id == restore_id)
        return next(done, None) if job_id == "job" else None

    def _counted_before(self, _: Any, job_id: str, number: int) -> Attempt | None:
        counted = [each for each in self.attempts if self.attempts[each].metrics is not None and each < number]
        return self.attempts[max(counted)] if counted and job_id == "job" else None

    def _running(self, session: Any, job_id: str) -> Operation | None:
        found = self._in_progress(session, job_id)
        return next((each for each in found if each.kind in {*CHANGES, *STOPS, OperationKind.START}), None)

    def _in_progress(self, _: Any, job_id: str) -> list[Operation]:
        found = [each for each in self.operations.values() if each.status is OperationStatus.IN_PROGRESS]
        return found if job_id == "job" else []

    def _pending(self, session: Any, job_id: str, attempt: int) -> list[Operation]:
        found = [each for each in self._in_progress(session, job_id) if each.old_attempt == attempt]
        return [each for each in found if each.command_status is CommandStatus.IN_PROGRESS]

    def _latest_completed(self, _: Any, job_id: str, *, since_attempt: int | None) -> Checkpoint | None:
        return self.latest.get(since_attempt) if job_id == "job" else None

    def _fail_unfinished(self, _: Any, job_id: str, attempt: int, *, at_ms: int, message: str) -> int:
        assert (job_id, at_ms, f"attempt {attempt} " in message) == ("job", NOW_MS, True)
        return self.unfinished

    def _note_event(self, _: Any, *, kind: str, **details: Any) -> None:
        assert (details["job_id"], details["at_ms"]) == ("job", NOW_MS)
        self.events.append((kind, details))

    def _note_exception(self, _: Any, job_id: str, number: int, at_ms: int, why: dict[str, Any]) -> None:
        assert (job_id, at_ms) == ("job", NOW_MS)
        self.exceptions.append((number, why["code"]))

    def _store(self, _: Any, job_id: str, at_ms: int, values: dict[str, Any]) -> None:
        assert (job_id, at_ms) == ("job", NOW_MS)
        self.points.append(values)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    rows = Stored()
    for module, queries in rows.queries().items():
        for name, query in queries.items():
            monkeypatch.setattr(module, name, query)
    for module in (apply_module, job_transaction, operation_results):
        monkeypatch.setattr(module, "now_ms", lambda: NOW_MS)
    return rows


def take(rows: Stored, *wanted: steps.Step) -> None:
    for step in wanted:
        apply(step, JobTransaction(cast("Any", rows), rows.job))
        rows.flush()


def test_an_attempt_has_the_next_number_the_revisions_parallelism_and_the_latest_checkpoint(stored: Stored) -> None:
    stored.attempt(1, ENDED, metrics=DriverMetrics(input_records=5).model_dump(), heartbeat_at_ms=7)
    take(stored, steps.CreateAttempt(2, Cause.RECOVER))
    made = stored.attempts[2]
    assert (made.job_id, made.stage, made.cause) == ("job", ACTIVE, Cause.RECOVER)
    assert (made.revision, made.parallelism) == (2, 20)
    assert (made.restore_mode, made.restore_from, made.restore_id) == (RestoreMode.CONTINUE, LATEST, None)
    assert (made.claim_mode, made.allow_non_restored_state) == (ClaimMode.NO_CLAIM, False)
    assert (made.created_at_ms, made.reaped, made.totals_before["input_records"]) == (NOW_MS, False, 5)
    assert stored.kinds() == ["ATTEMPT_CREATED"]


@pytest.mark.parametrize(("after", "number"), [(0, 2), (1, 2), (6, 7)])
def test_an_attempt_is_newer_than_each_attempt_of_the_database_and_of_the_log(
    stored: Stored, after: int, number: int
) -> None:
    stored.attempt(1, ENDED)
    take(stored, steps.CreateAttempt(1, Cause.RECOVER, after=after))
    assert max(stored.attempts) == number


def test_time_begins_again_also_after_attempts_that_only_the_log_knows(stored: Stored) -> None:
    stored.attempt(1, ENDED)
    stored.job.time_reset_after = 1
    take(stored, steps.CreateAttempt(1, Cause.START, after=6))
    assert stored.job.time_reset_after == 6
    stored.attempts[7].stage = ENDED
    take(stored, steps.CreateAttempt(1, Cause.RECOVER, after=9))
    assert (max(stored.attempts), stored.job.time_reset_after) == (10, 6), "time begins again once"


def test_a_standby_gets_its_restore_when_it_is_activated_and_the_change_knows_it(stored: Stored) -> None:
    stored.attempt(1)
    change = stored.begin(metrics_before={"lag_records": 4, "input_rate": 2.0, "batch_duration_ms": 1000.0})
    take(stored, steps.CreateAttempt(2, Cause.UPGRADE, standby=True))
    made = stored.attempts[2]
    assert (made.stage, made.restore_mode, made.restore_from) == (STANDBY, None, None)
    assert (change.new_attempt, made.lag_before) == (2, 6)


def test_the_counters_of_the_log_are_stored_before_the_next_attempt_begins_with_them(stored: Stored) -> None:
    stored.attempt(1, ENDED, metrics=DriverMetrics(input_records=5).model_dump(), totals_before={"lost_records": 2})
    counters = JobCounters(input_records=9, output_records=8, late_records=0, dead_letters=0)
    take(stored, steps.CreateAttempt(1, Cause.RECOVER, counters=counters))
    assert stored.attempts[2].totals_before["input_records"] == 9
    [point] = stored.points
    assert (point["input_records"], point["output_records"], point["lost_records"]) == (9, 8, 2)


def test_a_reaped_attempt_is_marked_and_the_log_is_counted(stored: Stored) -> None:
    stored.attempt(1, ENDED, metrics=DriverMetrics().model_dump())
    counters = JobCounters(input_records=9, output_records=8, late_records=0, dead_letters=0)
    take(stored, steps.MarkReaped(1, counters))
    assert (stored.attempts[1].reaped, stored.points[0]["input_records"]) == (True, 9)
    take(stored, steps.MarkReaped(1))
    assert len(stored.points) == 1


def test_what_an_attempt_has_begun_fails_with_it_but_a_stop_waits_for_the_next_driver(stored: Stored) -> None:
    stored.attempt(1)
    stored.unfinished = 2
    snapshot = stored.operation("s", OperationKind.SAVEPOINT)
    stop = stored.operation("end", OperationKind.STOP)
    other = stored.operation("o", OperationKind.SAVEPOINT, 2)
    take(stored, steps.EndAttempt(1), steps.EndAttempt(1))
    ended = stored.attempts[1]
    assert (ended.stage, ended.ended_at_ms, ended.failure) == (ENDED, NOW_MS, None)
    assert (snapshot.status, snapshot.failure["code"]) == (OperationStatus.FAILED, "DRIVER_LOST")
    assert snapshot.command_status is CommandStatus.FAILED
    assert {stop.status, other.status} == {OperationStatus.IN_PROGRESS}
    assert (stored.points, stored.exceptions) == ([{"checkpoints_failed": 2}], [])


@pytest.mark.parametrize(
    ("backoff_ms", "desired", "status", "next_start", "shown"),
    [
        (500, DesiredState.RUNNING, JobStatus.RUNNING, NOW_MS + 500, JobStatus.RESTARTING),
        (0, DesiredState.RUNNING, JobStatus.RUNNING, 0, JobStatus.RESTARTING),
        (0, DesiredState.STOPPED, JobStatus.SAVEPOINTING, 0, JobStatus.SAVEPOINTING),
        (0, DesiredState.RUNNING, JobStatus.UPGRADING, 0, JobStatus.UPGRADING),
    ],
)
def test_a_lost_attempt_is_replaced_after_its_backoff_and_counted_once(  # noqa: PLR0917 - a table
    stored: Stored, backoff_ms: int, desired: DesiredState, status: JobStatus, next_start: int, shown: JobStatus
) -> None:
    stored.attempt(1)
    job = stored.job
    job.desired, job.status, job.failures = desired, status, {"count": 1}
    take(stored, steps.ReplaceAttempt(1, FAILURE, 3, backoff_ms))
    assert (job.failure, job.consecutive_failures, job.restarts) == (FAILURE, 3, 6)
    assert (job.next_start_at_ms, job.status, job.failures) == (next_start, shown, {"count": 1})
    assert (stored.attempts[1].stage, stored.attempts[1].failure) == (ENDED, FAILURE)
    assert (stored.points, stored.exceptions) == ([{"restarts": 1}], [(1, "X")])
    assert ("now" in stored.events[-1][1]["message"]) is (backoff_ms == 0)


def test_the_history_of_a_restart_strategy_replaces_the_one_before(stored: Stored) -> None:
    stored.attempt(1)
    history = FailureHistory(count=2, times_ms=[5])
    take(stored, steps.ReplaceAttempt(1, FAILURE, 1, 0, history))
    assert stored.job.failures == history.model_dump()


def test_the_failure_that_the_driver_has_told_itself_stays_and_a_cancelled_change_is_none(stored: Stored) -> None:
    stored.attempt(1, failure={"code": "OWN", "message": "own"})
    stored.attempt(2, STANDBY)
    transaction = JobTransaction(cast("Any", stored), stored.job)
    transaction.end_attempt(1, FAILURE)
    transaction.end_attempt(2, {"code": CANCELLED, "message": "cancelled"})
    assert [each.failure["code"] for each in stored.attempts.values()] == ["OWN", CANCELLED]
    assert stored.exceptions == []


@pytest.mark.parametrize(
    ("step", "status", "failure", "code"),
    [
        (steps.FailJob(FAILURE), JobStatus.FAILED, FAILURE, "X"),
        (steps.SettleJob(JobStatus.STOPPED), JobStatus.STOPPED, None, "JOB_ENDED"),
    ],
)
def test_everything_in_progress_ends_with_the_job(
    stored: Stored, step: steps.Step, status: JobStatus, failure: Any, code: str
) -> None:
    stored.attempt(1)
    stored.attempt(2, STANDBY)
    change = stored.begin(command_status=CommandStatus.IN_PROGRESS)
    stop = stored.operation("end", OperationKind.STOP)
    late = stored.operation("s", OperationKind.SAVEPOINT, 0)
    cancel = stored.operation("cancel", OperationKind.CANCEL, command_status=None)
    stored.job.failure = {"code": "EARLIER"}
    take(stored, step)
    assert (stored.job.status, stored.job.desired, stored.job.failure) == (status, DesiredState.STOPPED, failure)
    assert stored.job.ended_at_ms == NOW_MS
    assert {each.stage for each in stored.attempts.values()} == {ENDED}
    assert (change.phases[0]["ended_at_ms"], change.ended_at_ms) == (NOW_MS, NOW_MS)
    assert {each.status for each in (change, stop, late)} == {OperationStatus.FAILED}
    assert {each.command_status for each in (change, stop, late)} == {CommandStatus.FAILED}
    assert [each.failure["code"] for each in (change, stop, late)] == [code] * 3
    assert (cancel.status, cancel.failure) == (OperationStatus.COMPLETED, None)


def test_a_stop_is_complete_when_its_savepoint_is_published_and_the_job_has_ended(stored: Stored) -> None:
    stored.attempt(1)
    done = stored.operation("end", OperationKind.STOP, command_status=CommandStatus.COMPLETED)
    take(stored, steps.ShowStatus(JobStatus.STOPPING))
    assert done.status is OperationStatus.IN_PROGRESS
    take(stored, steps.SettleJob(JobStatus.STOPPED))
    assert (done.status, done.failure, done.ended_at_ms) == (OperationStatus.COMPLETED, None, NOW_MS)


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (steps.CompleteStart(), OperationStatus.COMPLETED, None),
        (steps.SettleJob(JobStatus.FINISHED), OperationStatus.COMPLETED, None),
        (steps.SettleJob(JobStatus.STOPPED), OperationStatus.CANCELLED, None),
        (steps.FailJob(FAILURE), OperationStatus.FAILED, "X"),
    ],
)
def test_a_start_ends_with_the_first_input_or_with_the_job(
    stored: Stored, step: steps.Step, status: OperationStatus, code: str | None
) -> None:
    start = stored.operation("s", OperationKind.START, command_status=None)
    take(stored, step)
    assert (start.status, (start.failure or {}).get("code"), start.ended_at_ms) == (status, code, NOW_MS)


def test_a_stop_without_a_savepoint_fails_its_operation_and_stops_the_job(stored: Stored) -> None:
    stored.attempt(1)
    stop = stored.operation("end", OperationKind.STOP)
    take(stored, steps.StopWithoutSavepoint(FAILURE))
    assert (stop.status, stop.failure) == (OperationStatus.FAILED, FAILURE)
    assert (stored.job.status, stored.job.failure) == (JobStatus.STOPPED, None)
    assert stored.attempts[1].stage == ENDED


def test_the_stop_of_a_sleeping_job_tells_of_no_failure(stored: Stored) -> None:
    stored.attempt(1)
    stop = stored.operation("end", OperationKind.STOP)
    take(stored, steps.StopSleeping(1))
    assert (stop.status, stop.command_status, stop.failure) == (OperationStatus.COMPLETED, None, None)
    assert stored.kinds() == ["STOP_COMPLETED", "JOB_STOPPED"]


def test_a_live_rescale_that_a_driver_gives_up_is_not_told_as_a_failed_operation(stored: Stored) -> None:
    rescale = stored.begin(OperationKind.RESCALE, rescale_mode=RescaleMode.LIVE)
    rescale.command_status = CommandStatus.IN_PROGRESS
    operation_results.settle_command(cast("Any", stored), rescale, status=CommandStatus.FAILED, failed=FAILURE)
    assert [(kind, notification_of(kind)) for kind in stored.kinds()] == [("LIVE_RESCALE_FAILED", None)]
    assert {*stored.kinds()} <= EVENT_KINDS


def test_a_job_that_runs_is_shown_with_the_attempt_that_runs_it(stored: Stored) -> None:
    stored.attempt(3)
    stored.job.status = JobStatus.RESTARTING
    take(stored, steps.ShowStatus(JobStatus.RUNNING))
    assert (stored.job.status, stored.events[0][1]["attempt"]) == (JobStatus.RUNNING, 3)
    take(stored, steps.ShowStatus(JobStatus.SAVEPOINTING))
    assert stored.kinds() == ["JOB_RUNNING"]


def test_a_recovered_job_forgets_its_failure_and_a_failed_stop_lets_the_job_run(stored: Stored) -> None:
    stored.job.failure, stored.job.desired = FAILURE, DesiredState.STOPPED
    stop = stored.operation("end", OperationKind.STOP, command_status=CommandStatus.FAILED, failure=FAILURE)
    take(stored, steps.ForgetFailure(), steps.ResumeJob(FAILURE))
    assert (stored.job.failure, stored.job.desired) == (None, DesiredState.RUNNING)
    assert (stop.status, stop.failure) == (OperationStatus.FAILED, FAILURE)
    assert stored.kinds() == ["JOB_RECOVERED", "STOP_FAILED"]
    assert [details["message"].endswith(" X") for _, details in stored.events] == [True, True]


def test_a_stop_moves_to_the_attempt_that_replaces_the_old_one(stored: Stored) -> None:
    stop = stored.operation("end", OperationKind.STOP)
    take(stored, steps.ReassignStop("end", 2))
    assert stop.old_attempt == 2


def test_a_change_commands_its_savepoint_once_and_keeps_where_it_is(stored: Stored) -> None:
    stored.attempt(1)
    change = stored.begin()
    take(stored, steps.BeginSavepoint())
    assert (change.command_status, change.savepoint_id) == (CommandStatus.IN_PROGRESS, "c")
    assert (change.command_id, change.command_kind) == ("upgrade:c", CommandKind.STOP_WITH_SAVEPOINT)
    change.command_status, change.location = CommandStatus.COMPLETED, SAVEPOINT
    take(stored, steps.BeginSavepoint(), steps.AdvanceChange(ChangePhase.STOP))
    assert (change.command_status, change.location) == (CommandStatus.COMPLETED, SAVEPOINT)
    assert change.phase is ChangePhase.STOP
    assert [phase["ended_at_ms"] for phase in change.phases] == [NOW_MS] * 3 + [None]


@pytest.mark.parametrize("standby", [True, False])
def test_the_new_revision_takes_over_from_the_savepoint_once_the_old_attempt_has_ended(
    stored: Stored, standby: bool
) -> None:
    counted = DriverMetrics(input_records=5).model_dump()
    stored.attempt(1, last_commit_at_ms=NOW_MS - 50, metrics=counted)
    if standby:
        stored.attempt(2, STANDBY, totals_before={"input_records": 1})
    change = stored.begin(location=SAVEPOINT)
    take(stored, steps.SwitchOver())
    old, new = stored.attempts[1], stored.attempts[2]
    assert (old.stage, new.stage, stored.job.revision) == (ENDED, ACTIVE, 2)
    assert (new.restore_from, new.restore_id, new.restore_mode) == (SAVEPOINT, "c", RestoreMode.CONTINUE)
    assert (change.phase, change.stopped_at_ms) == (ChangePhase.RESTORE, NOW_MS - 50)
    assert new.totals_before["input_records"] == 5, "the old attempt has counted on since the standby was created"
    if not standby:
        assert (change.new_attempt, new.cause, new.parallelism) == (2, Cause.UPGRADE, 20)


def test_an_upgrade_from_the_last_state_begins_with_the_latest_checkpoint(stored: Stored) -> None:
    stored.attempt(1)
    change = stored.begin(upgrade_mode=UpgradeMode.LAST_STATE, allow_non_restored_state=True)
    take(stored, steps.SwitchOver())
    assert (change.location, stored.attempts[2].restore_from) == (LATEST, LATEST)
    assert stored.attempts[2].allow_non_restored_state


def test_a_lost_new_driver_is_replaced_by_one_of_the_same_revision(stored: Stored) -> None:
    stored.attempt(2)
    change = stored.begin(OperationKind.RESCALE, phase=ChangePhase.VERIFY, new_attempt=2)
    stored.job.restore = Restore("c", location=SAVEPOINT).dump()
    take(stored, steps.RetryRestore(2))
    made = stored.attempts[3]
    assert (stored.attempts[2].stage, made.stage, made.restore_from) == (ENDED, ACTIVE, SAVEPOINT)
    assert (made.revision, made.cause, change.new_attempt) == (2, Cause.RESCALE, 3)
    assert change.phase is ChangePhase.RESTORE
    take(stored, steps.RetryRestore(3))
    assert len(change.phases) == 2, "the phase goes on"


@pytest.mark.parametrize("replaced", [None, 1])
def test_a_change_is_given_up_with_its_new_driver_and_the_job_keeps_its_revision(
    stored: Stored, replaced: int | None
) -> None:
    stored.attempt(1)
    stored.attempt(2, STANDBY)
    change = stored.begin(command_status=CommandStatus.IN_PROGRESS)
    take(stored, steps.AbandonChange(FAILURE, replaced))
    assert (change.status, change.failure, stored.job.revision) == (OperationStatus.ROLLED_BACK, FAILURE, 1)
    assert change.command_status is CommandStatus.FAILED
    assert stored.attempts[2].stage is ENDED
    assert stored.attempts[1].stage is (ACTIVE if replaced is None else ENDED)
    assert (stored.job.restarts, stored.points) == ((5, []) if replaced is None else (6, [{"restarts": 1}]))


def test_a_phase_says_what_it_waits_for_until_the_next_one_begins(stored: Stored) -> None:
    away = {"code": "STORE_UNAVAILABLE", "message": "away"}
    stored.attempt(2)
    change = stored.begin(phase=ChangePhase.VERIFY)
    take(stored, steps.NoteWait(away))
    assert change.phases[-1]["waits_for"] == away
    noted = change.phases
    take(stored, steps.NoteWait(away))
    assert change.phases is noted, "the same wait changes no row"
    slow = {"code": "PLAN_TIMEOUT", "message": "slow"}
    take(stored, steps.NoteWait(slow))
    assert (change.phases[-1]["waits_for"], len(change.phases)) == (slow, len(noted))
    assert noted[-1]["waits_for"] == away, "a row is changed by a new value"
    take(stored, steps.RollBack(2, FAILURE))
    assert all("waits_for" not in phase for phase in change.phases)
    plain = stored.begin(phases=[])
    take(stored, steps.NoteWait(away))
    assert plain.phases == [], "an operation without phases"


@pytest.mark.parametrize("attempt", [2, None])
def test_a_change_that_fails_goes_back_to_the_old_revision_and_its_savepoint(
    stored: Stored, attempt: int | None
) -> None:
    stored.attempt(2, ACTIVE if attempt else ENDED)
    change = stored.begin(location=SAVEPOINT, phase=ChangePhase.RESTORE)
    stored.job.revision, stored.job.restore = 2, Restore("c", location=SAVEPOINT).dump()
    take(stored, steps.RollBack(attempt, FAILURE))
    made = stored.attempts[3]
    assert (stored.job.revision, made.revision, made.cause) == (1, 1, Cause.ROLL_BACK)
    assert (made.restore_mode, made.restore_from, made.restore_id) == (RestoreMode.REWIND, SAVEPOINT, "c.back")
    assert (change.phase, change.failure, change.status) == (
        ChangePhase.ROLL_BACK,
        FAILURE,
        OperationStatus.IN_PROGRESS,
    )
    assert stored.attempts[2].stage is ENDED


@pytest.mark.parametrize(
    ("rolled_back", "status", "failure"),
    [(False, OperationStatus.COMPLETED, None), (True, OperationStatus.ROLLED_BACK, FAILURE)],
)
def test_a_change_ends_with_the_times_of_the_attempt_that_runs_the_job(
    stored: Stored, rolled_back: bool, status: OperationStatus, failure: Any
) -> None:
    stored.attempt(3, launched_at_ms=1, attached_at_ms=2, restored_at_ms=3, first_commit_at_ms=4)
    change = stored.begin(failure=failure)
    take(stored, steps.CompleteChange(rolled_back, 55))
    assert (change.status, change.failure, change.ended_at_ms) == (status, failure, NOW_MS)
    assert (change.resumed_at_ms, change.times and change.times["first_commit_at_ms"]) == (55, 4)
    assert stored.events[-1][1]["ending"] == ("rolled back: X" if rolled_back else "completed")


@pytest.mark.parametrize(
    ("run", "live", "shown"),
    [(1, {"phase": "SWITCH"}, {"phase": "DONE"}), (None, {"phase": "SWITCH"}, {"phase": "SWITCH"}), (1, None, None)],
)
def test_a_live_rescale_ends_with_the_last_report_of_the_driver_that_went_on(
    stored: Stored, run: int | None, live: dict[str, Any] | None, shown: dict[str, Any] | None
) -> None:
    stored.attempt(2, run=run, rescale={"phase": "DONE"})
    change = begin_live(stored, live=live)
    take(stored, steps.CompleteChange(False, 55))
    assert change.live == shown


def test_a_job_that_wakes_takes_the_snapshots_that_its_sleeping_driver_was_asked_for(stored: Stored) -> None:
    stored.attempt(1, driver_state="WOKEN")
    snapshot = stored.operation("s", OperationKind.SAVEPOINT)
    drain = stored.operation("d", OperationKind.DRAIN)
    done = stored.operation("done", OperationKind.CHECKPOINT, command_status=CommandStatus.COMPLETED)
    take(stored, steps.WakeJob(1, 1))
    made = stored.attempts[2]
    assert (stored.attempts[1].stage, made.stage, made.cause, made.revision) == (ENDED, ACTIVE, Cause.WAKE, 1)
    assert [each.old_attempt for each in (snapshot, drain, done)] == [2, 1, 1]
    assert [each.command_status for each in (snapshot, drain)] == [CommandStatus.IN_PROGRESS] * 2


@pytest.mark.parametrize("status", [CommandStatus.IN_PROGRESS, CommandStatus.COMPLETED, None])
def test_a_savepoint_that_the_job_no_longer_waits_for_is_not_commanded_again(
    stored: Stored, status: CommandStatus | None
) -> None:
    stored.attempt(1)
    location = SAVEPOINT if status is CommandStatus.COMPLETED else None
    change = stored.begin(phase=ChangePhase.SAVEPOINT, command_status=status, location=location)
    take(stored, steps.SwitchOver())
    assert change.command_status is (None if status is CommandStatus.IN_PROGRESS else status)
    assert change.location == (location or LATEST)


def begin_live(rows: Stored, **columns: Any) -> Operation:
    prepare = {"phase": "PREPARE", "started_at_ms": 1000, "ended_at_ms": None}
    given = {"phase": ChangePhase.PREPARE, "phases": [prepare], "rescale_mode": RescaleMode.LIVE}
    return rows.begin(OperationKind.RESCALE, **{**given, **columns})


def phases_of(change: Operation) -> list[tuple[str, int]]:
    return [(str(phase["phase"]), phase["started_at_ms"]) for phase in change.phases]


@pytest.mark.parametrize(("run", "of_both"), [(None, 4), (3, 3)], ids=["its own run", "a run that it has taken over"])
def test_a_live_rescale_reserves_the_next_attempt_and_the_return_for_the_running_driver(
    stored: Stored, run: int | None, of_both: int
) -> None:
    process = {"launched_at_ms": 3, "attached_at_ms": 4, "pid": 5, "host": "h", "slots": 8}
    process |= {"launched_on": "here", "spark_ui_url": "http://h:4040"}
    stored.attempt(4, run=run, **process)
    change = begin_live(stored, attempt=4)
    take(stored, steps.ReserveAttempts(after=6), steps.SendRescale(), steps.SendRescale())
    opened, back = stored.attempts[7], stored.attempts[8]
    assert (opened.revision, opened.cause, back.revision, back.cause) == (2, Cause.LIVE_RESCALE, 1, Cause.ROLL_BACK)
    tokens = [token_sha256(reserved_token("key", f"job:{number}", "c")) for number in (7, 8)]
    assert [opened.token_sha256, back.token_sha256] == tokens
    for reserved in (opened, back):
        assert (reserved.stage, reserved.run, reserved.reaped) == (RESERVED, of_both, True)
        assert {name: getattr(reserved, name) for name in process} == process
    assert (change.new_attempt, change.command_status) == (7, CommandStatus.IN_PROGRESS)
    assert stored.kinds() == [], "an attempt that may never run is not announced"


@pytest.mark.parametrize(
    ("reported", "begun"),
    [
        ({"prepared_at_ms": 98_000, "switched_at_ms": 99_000}, [98_000, 99_000]),
        ({"prepared_at_ms": 7, "switched_at_ms": 99_000}, [1000, 99_000]),
        ({"prepared_at_ms": 98_000, "switched_at_ms": NOW_MS + 5000}, [98_000, NOW_MS]),
        ({}, [NOW_MS, NOW_MS]),
    ],
    ids=["as reported", "before the phase before", "by a clock ahead", "unknown"],
)
def test_a_switch_that_the_driver_reports_ends_the_attempt_before_and_keeps_its_counters(
    stored: Stored, reported: dict[str, int], begun: list[int]
) -> None:
    old = stored.attempt(1, last_commit_at_ms=97_000, metrics=DriverMetrics(input_records=5).model_dump())
    opened = stored.attempt(
        2, RESERVED, revision=2, driver_state="RUNNING", rescale=reported, totals_before={"input_records": 1}
    )
    back = stored.attempt(3, RESERVED, revision=1)
    change = begin_live(stored, new_attempt=2, command_status=CommandStatus.IN_PROGRESS)
    take(stored, steps.FollowSwitch())
    assert (old.stage, old.reaped) == (ENDED, True), "its driver goes on"
    assert (opened.stage, opened.reaped, opened.assigned_at_ms) == (ACTIVE, False, NOW_MS)
    assert (old.ended_at_ms, opened.ended_at_ms, back.ended_at_ms) == (NOW_MS, None, None)
    assert opened.totals_before["input_records"] == 5, "the attempt before has counted on since the reservation"
    assert (back.stage, stored.job.revision, change.command_status) == (RESERVED, 2, CommandStatus.COMPLETED)
    assert phases_of(change) == [("PREPARE", 1000), ("SWITCH", begun[0]), ("VERIFY", begun[1])]
    assert change.stopped_at_ms is not None
    assert change.stopped_at_ms <= begun[1]


@pytest.mark.parametrize(("stopped_at_ms", "shown_at_ms"), [(97_000, 97_000), (None, NOW_MS)])
def test_a_return_that_the_driver_reports_gives_the_job_its_revision_back(
    stored: Stored, stopped_at_ms: int | None, shown_at_ms: int
) -> None:
    failed = stored.attempt(2, metrics=DriverMetrics(input_records=7).model_dump())
    back = stored.attempt(3, RESERVED, revision=1, driver_state="RUNNING", rescale={"failure": FAILURE})
    stored.job.revision = 2
    change = begin_live(stored, new_attempt=2, phase=ChangePhase.VERIFY, stopped_at_ms=stopped_at_ms)
    take(stored, steps.FollowReturn())
    assert (failed.stage, back.stage, stored.job.revision) == (ENDED, ACTIVE, 1)
    assert (back.totals_before["input_records"], change.failure) == (7, FAILURE)
    assert (change.phase, change.stopped_at_ms) == (ChangePhase.ROLL_BACK, shown_at_ms)


@pytest.mark.parametrize(
    "step",
    [
        steps.RetryRestore(2),
        steps.RollBack(2, FAILURE),
        steps.AbandonChange(FAILURE),
        steps.CompleteChange(False, 5),
        steps.FailJob(FAILURE),
    ],
    ids=lambda step: type(step).__name__,
)
def test_no_reserved_attempt_outlasts_the_driver_or_the_rescale_that_it_was_reserved_for(
    stored: Stored, step: steps.Step
) -> None:
    stored.attempt(2, driver_state="RUNNING")
    stored.attempt(3, RESERVED)
    begin_live(stored, new_attempt=2, phase=ChangePhase.VERIFY, location=SAVEPOINT)
    take(stored, step)
    assert stored.attempts[3].stage is ENDED


def test_a_rescale_that_is_not_live_begins_again_with_a_new_driver(stored: Stored) -> None:
    stored.attempt(1)
    stored.attempt(2, RESERVED)
    stored.attempt(3, RESERVED)
    change = begin_live(stored, new_attempt=2, command_status=CommandStatus.FAILED, failure=FAILURE)
    take(stored, steps.FallBack(FAILURE))
    assert [stored.attempts[number].stage for number in (1, 2, 3)] == [ACTIVE, ENDED, ENDED]
    assert (change.phase, change.rescale_mode, change.not_live) == (
        ChangePhase.REQUESTED,
        RescaleMode.STANDBY,
        FAILURE,
    )
    assert (change.command_status, change.failure, change.new_attempt) == (None, None, None)


def test_a_restore_that_was_carried_out_is_cleared_and_a_rewind_begins_a_new_history(stored: Stored) -> None:
    transaction = JobTransaction(cast("Any", stored), stored.job)
    stored.attempt(4, restore_id="w", restored_at_ms=5)
    for mode, rewound in ((RestoreMode.CONTINUE, (None, None)), (RestoreMode.REWIND, (4, SAVEPOINT))):
        stored.job.restore = Restore("w", mode, SAVEPOINT).dump()
        assert transaction.pending_restore() is None
        assert stored.job.restore is None
        assert (stored.job.rewound_by, stored.job.rewound_to) == rewound
    assert transaction.latest_location() == SAVEPOINT, "no checkpoint is complete since"
    stored.latest[4] = Checkpoint(checkpoint_id=2, external_path="file:///store/newer.json")
    assert transaction.latest_location() == "file:///store/newer.json"


def test_a_restore_waits_for_an_attempt_and_replaces_the_one_before(stored: Stored) -> None:
    transaction = JobTransaction(cast("Any", stored), stored.job)
    stored.attempt(4, restore_id="other", restored_at_ms=5)
    transaction.set_pending_restore(Restore("first", RestoreMode.REWIND, SAVEPOINT))
    wanted = Restore("w", RestoreMode.STATELESS, None, ClaimMode.CLAIM, allow_non_restored_state=True)
    transaction.set_pending_restore(wanted)
    assert transaction.pending_restore() == wanted
    take(stored, steps.EndAttempt(4), steps.CreateAttempt(1, Cause.START))
    made = stored.attempts[5]
    assert (made.restore_mode, made.restore_from, made.restore_id) == (RestoreMode.STATELESS, None, "w")
    assert (made.claim_mode, made.allow_non_restored_state) == (ClaimMode.CLAIM, True)


def test_a_change_that_was_cancelled_ends_as_cancelled(stored: Stored) -> None:
    stored.attempt(1)
    change = stored.begin()
    take(stored, steps.AbandonChange({"code": CANCELLED, "message": "cancelled"}))
    assert (change.status, change.failure) == (OperationStatus.CANCELLED, None)
    assert stored.events[-1][1]["ending"] == "cancelled"
    assert stored.kinds()[-1] == "UPGRADE_CANCELLED"


def test_a_step_with_effects_outside_the_database_is_no_step_of_it(stored: Stored) -> None:
    with pytest.raises(TypeError, match="Launch"):
        take(stored, steps.Launch(1))


def test_the_first_failure_of_a_change_stays_when_the_job_fails_too(stored: Stored) -> None:
    change = stored.begin(failure=FAILURE)
    take(stored, steps.FailJob({"code": "LATER", "message": "it broke, too"}))
    assert (change.failure, change.status) == (FAILURE, OperationStatus.FAILED)
    assert stored.events[0][1]["ending"] == "failed: X"


def test_a_rewind_that_the_new_driver_has_carried_out_is_kept_in_mind_when_the_change_goes_back(
    stored: Stored,
) -> None:
    stored.attempt(2, restore_id="c", restored_at_ms=5)
    stored.begin(rewind_to=SAVEPOINT, location=LATEST, phase=ChangePhase.VERIFY)
    stored.job.restore = Restore("c", RestoreMode.REWIND, SAVEPOINT).dump()
    take(stored, steps.RollBack(2, FAILURE))
    assert (stored.job.rewound_by, stored.job.rewound_to) == (2, SAVEPOINT)
    assert stored.attempts[3].restore_from == SAVEPOINT, "the sinks have taken later output back"
