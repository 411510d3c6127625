"""The effects of steps in the database: a rescale from its request to either end, and its guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import IntegrityError

from keyscale.api.access.principal import Principal
from keyscale.api.job_spec import changed, spec_of
from keyscale.api.lifecycle import requests, steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.change_phases import CANCELLED
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.operation_results import settle_command
from keyscale.api.lifecycle.restoring import Restore
from keyscale.api.metrics import series
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Checkpoint, Job, Operation
from keyscale.db.repositories import attempts, job_signs, jobs, operations, revisions
from keyscale.jobs.protocol.messages import DriverMetrics, FailureHistory
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CheckpointStatus,
    ClaimMode,
    CommandStatus,
    DesiredState,
    JobStatus,
    OperationKind,
    OperationStatus,
    RestoreMode,
    Role,
    UpgradeMode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

SAVEPOINT = "file:///store/savepoints/r/manifest.json"
FAILURE = {"code": "X", "message": "it broke"}


@pytest.fixture
def take(context: Context, job: dict[str, Any], client: httpx.Client) -> Callable[..., None]:
    """Applies steps to the started job, one transaction each."""
    client.post(f"/v1/jobs/{job['id']}/start")

    def apply_all(*wanted: steps.Step) -> None:
        for step in wanted:
            with context.sessions.begin() as session:
                found = jobs.lock(session, job["id"])
                assert found is not None
                apply(step, JobTransaction(session, found))

    return apply_all


@pytest.fixture
def running(take: Callable[..., None], client: httpx.Client) -> Callable[..., None]:
    """The job, RUNNING at parallelism 2, with a rescale to 4 requested and its standby stored."""
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    answer = client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "r"})
    assert answer.status_code == 202, answer.text
    take(steps.CreateAttempt(2, steps.Cause.RESCALE, standby=True))
    return take


@pytest.fixture
def publish(context: Context) -> Callable[[], None]:
    """Completes the rescale's command, as the old driver would."""

    def settle() -> None:
        with context.sessions.begin() as session:
            command = operations.find(session, "r")
            assert command is not None
            settle_command(session, command, status=CommandStatus.COMPLETED, location=SAVEPOINT, checkpoint_id=9)

    return settle


def report(context: Context, job_id: str, number: int, **metrics: int) -> None:
    """Stores the metrics of a driver, as its heartbeat does."""
    with context.sessions.begin() as session:
        attempt = attempts.find(session, job_id, number, lock=True)
        assert attempt is not None
        series.begin_counting(session, attempt)
        attempt.metrics = DriverMetrics(**metrics).model_dump(mode="json")


def test_counters_do_not_go_back_when_a_standby_takes_over(
    running: Callable[..., None],
    publish: Callable[[], None],
    context: Context,
    job: dict[str, Any],
    client: httpx.Client,
) -> None:
    report(context, job["id"], 1, input_records=100)
    report(context, job["id"], 2)
    report(context, job["id"], 1, input_records=150)
    running(steps.BeginSavepoint())
    publish()
    running(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver())
    assert client.get("/v1/jobs/flights").json()["metrics"]["input_records"] == 150


def phases(client: httpx.Client) -> list[str]:
    return [phase["phase"] for phase in client.get("/v1/operations/r").json()["phases"]]


def stages(client: httpx.Client) -> dict[int, str]:
    return {one["number"]: one["stage"] for one in client.get("/v1/jobs/flights/attempts").json()["attempts"]}


def test_a_rescale_goes_through_its_phases_and_ends_at_the_new_parallelism(
    client: httpx.Client, running: Callable[..., None], publish: Callable[[], None]
) -> None:
    assert stages(client) == {1: "ACTIVE", 2: "STANDBY"}
    running(steps.BeginSavepoint())
    publish()
    running(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver())
    assert stages(client) == {1: "ENDED", 2: "ACTIVE"}
    newest = client.get("/v1/jobs/flights/attempts").json()["attempts"][0]
    assert (newest["restore_from"], newest["parallelism"]) == (SAVEPOINT, 4)
    running(steps.AdvanceChange(ChangePhase.VERIFY), steps.CompleteChange(False, 10**15))
    done = client.get("/v1/operations/r").json()
    assert (done["status"], done["from_parallelism"], done["to_parallelism"]) == ("COMPLETED", 2, 4)
    assert phases(client) == ["REQUESTED", "SAVEPOINT", "STOP", "RESTORE", "VERIFY"]
    assert all(phase["duration_ms"] >= 0 for phase in done["phases"])
    assert done["downtime_ms"] > 0
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["spec"]["parallelism"], shown["status"]["operation"]) == (4, None)
    operation = client.get("/v1/operations/r").json()
    assert (operation["kind"], operation["status"]) == ("RESCALE", "COMPLETED")


def test_a_rescale_that_fails_late_rolls_back_from_the_same_savepoint(
    client: httpx.Client, running: Callable[..., None], publish: Callable[[], None]
) -> None:
    running(steps.BeginSavepoint())
    publish()
    running(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver(), steps.RetryRestore(2))
    running(steps.AdvanceChange(ChangePhase.VERIFY), steps.RetryRestore(3))
    phases = [each["phase"] for each in client.get("/v1/operations/r").json()["phases"]]
    assert phases[-4:] == ["STOP", "RESTORE", "VERIFY", "RESTORE"], "each new driver has the time of a restore"
    running(steps.RollBack(4, FAILURE))
    assert stages(client) == {1: "ENDED", 2: "ENDED", 3: "ENDED", 4: "ENDED", 5: "ACTIVE"}
    attempt = client.get("/v1/jobs/flights").json()["status"]["attempt"]
    assert (attempt["parallelism"], attempt["restore_from"], attempt["cause"]) == (2, SAVEPOINT, "roll back")
    running(steps.CompleteChange(True, None))
    done = client.get("/v1/operations/r").json()
    assert (done["status"], done["failure"]["code"], done["phase"]) == ("ROLLED_BACK", "X", "ROLL_BACK")
    assert client.get("/v1/jobs/flights").json()["spec"]["parallelism"] == 2


def test_a_rescale_that_is_abandoned_leaves_the_running_driver_alone(
    client: httpx.Client, running: Callable[..., None]
) -> None:
    running(steps.BeginSavepoint(), steps.AbandonChange(FAILURE))
    assert stages(client) == {1: "ACTIVE", 2: "ENDED"}
    assert client.get("/v1/operations/r").json()["status"] == "ROLLED_BACK"
    assert client.get("/v1/operations/r").json()["failure"]["code"] == "X"
    again = client.post("/v1/jobs/flights/rescale", json={"parallelism": 4})
    assert again.json()["code"] == "OPERATION_IN_PROGRESS"  # until the reconciler has shown the job as RUNNING
    running(steps.ShowStatus(JobStatus.RUNNING))
    assert client.post("/v1/jobs/flights/rescale", json={"parallelism": 4}).status_code == 202


def test_a_driver_that_never_ends_the_savepoint_of_a_rescale_is_replaced_at_the_old_parallelism(
    client: httpx.Client, running: Callable[..., None]
) -> None:
    running(steps.BeginSavepoint(), steps.AbandonChange(FAILURE, replaced=1))
    assert stages(client) == {1: "ENDED", 2: "ENDED"}
    assert client.get("/v1/operations/r").json()["failure"]["code"] == "X"
    assert client.get("/v1/operations/r").json()["status"] == "ROLLED_BACK"
    running(steps.CreateAttempt(1, steps.Cause.RECOVER))
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["spec"]["parallelism"], shown["status"]["attempt"]["parallelism"], shown["status"]["restarts"]) == (
        2,
        2,
        1,
    )


@pytest.mark.usefixtures("running")
def test_a_second_rescale_is_refused_and_a_repeated_request_is_the_same_rescale(client: httpx.Client) -> None:
    before = client.get("/v1/operations/r").json()
    refused = {
        "OPERATION_IN_PROGRESS": {"parallelism": 3},
        "PARALLELISM_OUT_OF_RANGE": {"parallelism": 17},
        "OPERATION_ID_TAKEN": {"parallelism": 3, "id": "r"},
    }
    for code, body in refused.items():
        assert client.post("/v1/jobs/flights/rescale", json=body).json()["code"] == code
    same = client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "r"})
    assert (same.status_code, same.json()) == (202, before)
    assert client.post("/v1/jobs/flights/stop", json={}).json()["code"] == "OPERATION_IN_PROGRESS"
    assert len(client.get("/v1/jobs/flights/operations?kind=RESCALE").json()["operations"]) == 1


def test_a_rescale_to_the_present_or_an_impossible_parallelism_is_refused(
    client: httpx.Client, take: Callable[..., None]
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    for parallelism, code in (
        (2, "PARALLELISM_UNCHANGED"),
        (0, "PARALLELISM_OUT_OF_RANGE"),
        (-3, "PARALLELISM_OUT_OF_RANGE"),
    ):
        assert client.post("/v1/jobs/flights/rescale", json={"parallelism": parallelism}).json()["code"] == code
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "RUNNING"


def test_a_failed_job_has_nothing_in_progress_and_shows_why(client: httpx.Client, running: Callable[..., None]) -> None:
    running(steps.BeginSavepoint(), steps.FailJob({**FAILURE, "traceback": "Traceback: line 1"}))
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["status"]["state"], shown["status"]["failure"]["traceback"]) == ("FAILED", "Traceback: line 1")
    assert set(stages(client).values()) == {"ENDED"}
    assert client.get("/v1/operations/r").json()["status"] == "FAILED"
    assert client.post(f"/v1/jobs/{shown['id']}/start").json()["failure"] is None


def test_unfinished_operations_fail_with_their_lost_attempt(client: httpx.Client, take: Callable[..., None]) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    client.post("/v1/jobs/flights/savepoint", json={"id": "mine"})
    client.post("/v1/jobs/flights/checkpoint", json={"id": "now"})
    take(steps.ReplaceAttempt(1, FAILURE, 1, 0))
    for operation in ("mine", "now"):
        shown = client.get(f"/v1/operations/{operation}").json()
        assert (shown["status"], shown["failure"]["code"]) == ("FAILED", "DRIVER_LOST")
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["status"]["state"], shown["status"]["restarts"], shown["status"]["failure"]["code"]) == (
        "RESTARTING",
        1,
        "X",
    )


def test_pending_snapshots_of_a_sleeping_job_move_to_the_attempt_that_wakes(
    client: httpx.Client, take: Callable[..., None]
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    take(steps.ShowStatus(JobStatus.SLEEPING))
    assert client.post("/v1/jobs/flights/savepoint", json={"id": "mine"}).status_code == 202
    take(steps.WakeJob(1, 1))
    status = client.get("/v1/jobs/flights").json()["status"]
    assert (status["attempt"]["number"], status["attempt"]["cause"], status["restarts"]) == (2, "wake", 0)
    assert (status["failure"], client.get("/v1/operations/mine").json()["status"]) == (None, "IN_PROGRESS")


def test_a_rescale_that_meets_a_driver_falling_asleep_starts_from_its_last_checkpoint(
    running: Callable[..., None], context: Context, job: dict[str, Any], client: httpx.Client
) -> None:
    running(steps.BeginSavepoint())
    with context.sessions.begin() as session:
        session.add(
            Checkpoint(
                job_id=job["id"],
                checkpoint_id=7,
                attempt=1,
                status=CheckpointStatus.COMPLETED,
                is_savepoint=False,
                external_path=SAVEPOINT,
                trigger_timestamp=0,
                latest_ack_timestamp=1,
                end_to_end_duration=1,
                checkpointed_size=1,
                state_size=1,
                processed_records=1,
                num_subtasks=0,
                num_acknowledged_subtasks=0,
            )
        )
    running(steps.SwitchOver())
    with context.reads() as session:
        taken = operations.find(session, "r")
        assert taken is not None
        assert (taken.location, taken.command_status) == (SAVEPOINT, None)
    assert client.get("/v1/jobs/flights").json()["status"]["attempt"]["number"] == 2


def test_a_sleeping_job_whose_driver_dies_restarts_and_its_sleep_is_an_event(
    client: httpx.Client, take: Callable[..., None]
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    take(steps.ShowStatus(JobStatus.SLEEPING))
    [asleep] = client.get("/v1/jobs/flights/events?kind=JOB_SLEEPING").json()["events"]
    assert asleep["message"] == "attempt 1 sleeps until there is work"
    take(steps.ReplaceAttempt(1, FAILURE, 1, 0))
    status = client.get("/v1/jobs/flights").json()["status"]
    assert (status["state"], status["restarts"]) == ("RESTARTING", 1)


def test_a_sleeping_job_stops_without_a_savepoint_and_without_a_failure(
    client: httpx.Client, take: Callable[..., None]
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    take(steps.ShowStatus(JobStatus.SLEEPING))
    client.post("/v1/jobs/flights/stop", json={"id": "stop"})
    take(steps.StopSleeping(1))
    stopped, shown = client.get("/v1/operations/stop").json(), client.get("/v1/jobs/flights").json()
    assert (stopped["status"], stopped["failure"]) == ("COMPLETED", None)
    assert (shown["status"]["state"], shown["status"]["failure"]) == ("STOPPED", None)


def test_a_failure_stays_visible_while_the_job_restarts_and_runs_until_it_is_forgotten(
    client: httpx.Client, take: Callable[..., None]
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    take(steps.ReplaceAttempt(1, FAILURE, 1, 0))
    assert client.get("/v1/jobs/flights").json()["status"]["failure"]["code"] == "X"
    take(steps.CreateAttempt(1, steps.Cause.RECOVER), steps.ShowStatus(JobStatus.RUNNING))
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["status"]["state"], shown["status"]["failure"]["code"]) == ("RUNNING", "X")
    take(steps.ForgetFailure())
    assert client.get("/v1/jobs/flights").json()["status"]["failure"] is None
    assert "JOB_RECOVERED" in {event["kind"] for event in client.get("/v1/jobs/flights/events").json()["events"]}


def test_earlier_runs_are_those_that_were_given_the_job_since_its_user_started_it(
    context: Context, job: dict[str, Any], take: Callable[..., None]
) -> None:
    for number, is_assigned in ((1, True), (2, False), (3, True)):
        take(steps.CreateAttempt(1, steps.Cause.START))
        with context.sessions.begin() as session:
            made = attempts.find(session, job["id"], number)
            assert made is not None
            made.assigned_at_ms, made.created_at_ms = 5 if is_assigned else None, 100 * number
        take(steps.ReplaceAttempt(number, FAILURE, 1, 0))

    def found(since_ms: int, limit: int = 2) -> list[int]:
        with context.sessions() as session:
            ran = attempts.ran_before(session, job["id"], 4, since_ms=since_ms, limit=limit)
            return [attempt.number for attempt in ran]

    assert found(0) == [3, 1]
    assert found(0, limit=1) == [3]
    assert found(200) == [3]


def test_the_database_itself_refuses_a_second_active_attempt(context: Context, take: Callable[..., None]) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START))
    with pytest.raises(IntegrityError, match="uq_attempts_one_active"):
        take(steps.CreateAttempt(1, steps.Cause.START))
    with context.sessions() as session:
        assert session.query(Attempt).count() == 1


def test_a_settled_job_is_looked_after_until_its_processes_are_gone(
    context: Context, job: dict[str, Any], take: Callable[..., None]
) -> None:
    def looked_after() -> bool:
        with context.sessions() as session:
            return job["id"] in [sign.id for sign in job_signs.to_reconcile(session)]

    assert looked_after()
    take(steps.CreateAttempt(1, steps.Cause.START), steps.SettleJob(JobStatus.STOPPED))
    assert looked_after(), "its driver may still run"
    take(steps.MarkReaped(1))
    assert not looked_after()


def test_an_active_and_a_standby_attempt_are_found_by_their_stage(
    context: Context, job: dict[str, Any], running: Callable[..., None]
) -> None:
    running()
    with context.sessions() as session:
        for stage, number in ((AttemptStage.ACTIVE, 1), (AttemptStage.STANDBY, 2)):
            found = attempts.of_stage(session, job["id"], stage)
            assert found is not None
            assert found.number == number


@pytest.mark.parametrize(("code", "kept"), [(CANCELLED, []), ("X", ["X"])])
def test_a_cancelled_change_leaves_no_exception_and_a_failed_one_does(
    client: httpx.Client, running: Callable[..., None], publish: Callable[[], None], code: str, kept: list[str]
) -> None:
    running(steps.BeginSavepoint())
    publish()
    why = {"code": code, "message": "it ends"}
    running(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver(), steps.RollBack(2, why))
    assert [each["code"] for each in client.get("/v1/jobs/flights/exceptions").json()["exceptions"]] == kept
    assert client.get("/v1/operations/r").json()["failure"]["code"] == code


def test_an_upgrade_from_the_last_state_keeps_a_restore_that_no_attempt_has_carried_out(
    client: httpx.Client, context: Context, job: dict[str, Any], take: Callable[..., None]
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    user = Principal("test", "test", Role.ADMIN)
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        JobTransaction(session, found).set_pending_restore(Restore("pending", RestoreMode.REWIND, SAVEPOINT))
        wanted = changed(spec_of(revisions.current(session, found)), {"parameters": {"version": "2"}})
        revision = requests.revise(session, found, wanted, user)
        change = requests.Change(OperationKind.UPGRADE, revision, UpgradeMode.LAST_STATE)
        requests.change(session, found, user, "u", change)
    take(steps.SwitchOver())
    newest = client.get("/v1/jobs/flights/attempts").json()["attempts"][0]
    assert (newest["number"], newest["revision"], newest["restore_from"]) == (2, 2, SAVEPOINT)


def test_after_a_rewind_the_job_continues_from_the_checkpoints_since_and_before_them_from_its_savepoint(
    client: httpx.Client, context: Context, job: dict[str, Any], take: Callable[..., None]
) -> None:
    def complete(checkpoint_id: int, attempt: int) -> str:
        location = f"file:///store/job/chk-{checkpoint_id}/manifest.json"
        sizes = dict.fromkeys(("end_to_end_duration", "checkpointed_size", "state_size", "processed_records"), 1)
        with context.sessions.begin() as session:
            session.add(
                Checkpoint(
                    job_id=job["id"],
                    checkpoint_id=checkpoint_id,
                    attempt=attempt,
                    status=CheckpointStatus.COMPLETED,
                    is_savepoint=False,
                    trigger_timestamp=1,
                    external_path=location,
                    num_subtasks=0,
                    num_acknowledged_subtasks=0,
                    **sizes,
                )
            )
        return location

    def restored_by_next() -> str | None:
        latest = client.get("/v1/jobs/flights/attempts").json()["attempts"][0]["number"]
        take(steps.EndAttempt(latest), steps.CreateAttempt(1, steps.Cause.RECOVER))
        shown = client.get("/v1/jobs/flights/attempts").json()["attempts"][0]
        assert shown["number"] == latest + 1
        return shown["restore_from"]  # type: ignore[no-any-return]  # JSON

    take(steps.CreateAttempt(1, steps.Cause.START))
    complete(7, attempt=1)
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        JobTransaction(session, found).set_pending_restore(Restore("pending", RestoreMode.REWIND, SAVEPOINT))
    assert restored_by_next() == SAVEPOINT
    with context.sessions.begin() as session:
        session.get_one(Attempt, (job["id"], 2)).restored_at_ms = 5
    assert restored_by_next() == SAVEPOINT, "the checkpoint before the rewind is not of the job's history"
    location = complete(8, attempt=2)
    assert restored_by_next() == location


def test_a_change_keeps_the_times_of_its_new_driver_which_knows_the_lag_that_it_found(
    client: httpx.Client,
    context: Context,
    job: dict[str, Any],
    take: Callable[..., None],
    publish: Callable[[], None],
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    with context.sessions.begin() as session:
        session.get_one(Attempt, (job["id"], 1)).metrics = DriverMetrics(batches=3, pending_records=5).model_dump()
    assert client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "r"}).status_code == 202
    take(steps.CreateAttempt(2, steps.Cause.RESCALE, standby=True), steps.BeginSavepoint())
    publish()
    take(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver(), steps.AdvanceChange(ChangePhase.VERIFY))
    with context.sessions.begin() as session:
        new = session.get_one(Attempt, (job["id"], 2))
        new.launched_at_ms, new.attached_at_ms, new.restored_at_ms, new.first_commit_at_ms = 110, 900, 2000, 2400
    take(steps.CompleteChange(False, 10**15))
    with context.sessions() as session:
        assert session.get_one(Attempt, (job["id"], 2)).lag_before == 5
        times = session.get_one(Operation, "r").times or {}
    assert {name: times[name] for name in ("launched_at_ms", "attached_at_ms", "restored_at_ms")} == {
        "launched_at_ms": 110,
        "attached_at_ms": 900,
        "restored_at_ms": 2000,
    }


class Stored:
    """The rows of the job `flights`."""

    def __init__(self, context: Context, job_id: str) -> None:
        self._context, self._job_id = context, job_id

    def job(self) -> Job:
        with self._context.sessions() as session:
            return session.get_one(Job, self._job_id)

    def attempt(self, number: int) -> Attempt:
        with self._context.sessions() as session:
            return session.get_one(Attempt, (self._job_id, number))

    def operation(self, operation_id: str) -> Operation:
        with self._context.sessions() as session:
            return session.get_one(Operation, operation_id)

    def set_pending_restore(self, restore: Restore) -> None:
        with self._context.sessions.begin() as session:
            found = jobs.lock(session, self._job_id)
            assert found is not None
            JobTransaction(session, found).set_pending_restore(restore)

    def set_attempt(self, number: int, **columns: Any) -> None:
        with self._context.sessions.begin() as session:
            found = session.get_one(Attempt, (self._job_id, number))
            for name, value in columns.items():
                setattr(found, name, value)


@pytest.fixture
def stored(context: Context, job: dict[str, Any]) -> Stored:
    return Stored(context, job["id"])


def test_a_replaced_attempt_leaves_its_failure_the_counts_and_the_time_of_the_next_start(
    take: Callable[..., None], stored: Stored
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    before_ms = now_ms()
    take(steps.ReplaceAttempt(1, FAILURE, 3, 5000, FailureHistory(count=4, times_ms=[7])))
    found, ended = stored.job(), stored.attempt(1)
    assert (found.status, found.failure, found.consecutive_failures) == (JobStatus.RESTARTING, FAILURE, 3)
    assert (found.failures, found.restarts) == ({"count": 4, "times_ms": [7]}, 1)
    assert before_ms + 5000 <= found.next_start_at_ms <= now_ms() + 5000
    assert (ended.stage, ended.failure, ended.exit_code) == (AttemptStage.ENDED, FAILURE, None)
    assert ended.ended_at_ms is not None
    assert ended.ended_at_ms >= before_ms
    take(steps.CreateAttempt(1, steps.Cause.RECOVER), steps.ReplaceAttempt(2, FAILURE, 1, 0))
    assert (stored.job().next_start_at_ms, stored.job().restarts, stored.job().consecutive_failures) == (0, 2, 1)
    assert stored.job().failures == {"count": 4, "times_ms": [7]}, "no strategy has counted the second failure"


def test_an_attempt_is_ended_once_and_its_first_failure_stays(
    client: httpx.Client, take: Callable[..., None], stored: Stored
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    stored.set_attempt(1, failure={"code": "FIRST", "message": "it broke"})
    take(steps.ReplaceAttempt(1, FAILURE, 1, 0))
    ended_at_ms = stored.attempt(1).ended_at_ms
    take(steps.EndAttempt(1))
    assert (stored.attempt(1).ended_at_ms, (stored.attempt(1).failure or {})["code"]) == (ended_at_ms, "FIRST")
    assert client.get("/v1/jobs/flights/exceptions").json()["exceptions"] == [], "its driver has reported it"


def test_a_stop_moves_to_the_next_attempt_and_ends_with_the_job(
    client: httpx.Client, take: Callable[..., None], stored: Stored
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    client.post("/v1/jobs/flights/stop", json={"id": "end"})
    client.post("/v1/jobs/flights/savepoint", json={"id": "mine"})
    take(steps.ReplaceAttempt(1, FAILURE, 1, 0))
    assert stored.job().status is JobStatus.SAVEPOINTING, "a job that stops does not show a restart"
    assert stored.operation("end").command_status is CommandStatus.IN_PROGRESS
    take(steps.CreateAttempt(1, steps.Cause.RECOVER), steps.ReassignStop("end", 2))
    assert stored.operation("end").old_attempt == 2
    take(steps.SettleJob(JobStatus.STOPPED))
    command, found = stored.operation("end"), stored.job()
    assert (command.status, (command.failure or {})["code"]) == (OperationStatus.FAILED, "JOB_ENDED")
    assert (found.status, found.desired, found.failure) == (JobStatus.STOPPED, DesiredState.STOPPED, None)
    assert found.ended_at_ms is not None
    assert stages(client) == {1: "ENDED", 2: "ENDED"}


def test_a_job_whose_savepoint_failed_is_wanted_to_run_again(
    client: httpx.Client, take: Callable[..., None], stored: Stored
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    client.post("/v1/jobs/flights/stop", json={"id": "end"})
    take(steps.ResumeJob(FAILURE), steps.ShowStatus(JobStatus.RUNNING))
    assert (stored.job().desired, stored.job().status) == (DesiredState.RUNNING, JobStatus.RUNNING)
    assert stages(client) == {1: "ACTIVE"}


def test_an_attempt_is_told_how_to_restore_and_a_standby_only_when_it_takes_over(
    running: Callable[..., None], publish: Callable[[], None], stored: Stored
) -> None:
    waiting = stored.attempt(2)
    assert (waiting.restore_from, waiting.restore_id, waiting.revision) == (None, None, 2)
    assert stored.operation("r").new_attempt == 2
    running(steps.BeginSavepoint())
    publish()
    running(steps.AdvanceChange(ChangePhase.STOP))
    assert (stored.operation("r").location, stored.operation("r").checkpoint_id) == (SAVEPOINT, 9)
    assert stored.job().revision == 1
    running(steps.SwitchOver())
    told, change = stored.attempt(2), stored.operation("r")
    assert (told.stage, told.restore_from, told.restore_mode) == (
        AttemptStage.ACTIVE,
        SAVEPOINT,
        RestoreMode.CONTINUE,
    )
    assert (stored.job().revision, change.old_attempt) == (2, 1)
    assert change.stopped_at_ms is not None
    pending = Restore("pending", RestoreMode.REWIND, SAVEPOINT, ClaimMode.CLAIM, allow_non_restored_state=True)
    stored.set_pending_restore(pending)
    running(steps.EndAttempt(2), steps.CreateAttempt(1, steps.Cause.START, after=7))
    told = stored.attempt(8)
    assert (told.restore_id, told.restore_mode, told.restore_from) == ("pending", RestoreMode.REWIND, SAVEPOINT)
    assert (told.claim_mode, told.allow_non_restored_state) == (ClaimMode.CLAIM, True)
    assert (told.revision, told.parallelism, told.cause) == (1, 2, "start")


@pytest.mark.parametrize(("mode", "rewound"), [(RestoreMode.REWIND, (2, SAVEPOINT)), (RestoreMode.CONTINUE, (0, None))])
def test_a_restore_is_pending_until_an_attempt_has_carried_it_out_and_only_a_rewind_begins_a_history(
    take: Callable[..., None], stored: Stored, mode: RestoreMode, rewound: tuple[int, str | None]
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.EndAttempt(1))
    stored.set_pending_restore(Restore("pending", mode, SAVEPOINT))
    take(steps.CreateAttempt(1, steps.Cause.START), steps.EndAttempt(2))
    take(steps.CreateAttempt(1, steps.Cause.START), steps.EndAttempt(3))
    assert stored.attempt(3).restore_id == "pending", "attempt 2 has restored nothing"
    stored.set_attempt(2, restored_at_ms=5)
    take(steps.CreateAttempt(1, steps.Cause.START))
    assert stored.attempt(4).restore_id is None
    assert (stored.job().restore, stored.job().rewound_by, stored.job().rewound_to) == (None, *rewound)


def test_a_change_without_a_standby_gets_a_driver_of_its_own_revision_and_cause(
    client: httpx.Client, take: Callable[..., None], publish: Callable[[], None], stored: Stored
) -> None:
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    assert client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "r"}).status_code == 202
    take(steps.BeginSavepoint(), steps.BeginSavepoint())
    command = stored.operation("r")
    assert (command.old_attempt, command.savepoint_id, command.command_id) == (1, "r", "rescale:r")
    publish()
    take(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver())
    made = stored.attempt(2)
    assert (made.revision, made.parallelism, made.cause, made.stage) == (2, 4, "rescale", AttemptStage.ACTIVE)
    assert stored.operation("r").new_attempt == 2
    take(steps.RetryRestore(2))
    assert (stored.operation("r").new_attempt, stored.attempt(3).restore_from) == (3, SAVEPOINT)
    take(steps.CompleteChange(False, 77))
    change = stored.operation("r")
    assert (change.resumed_at_ms, change.status, change.failure) == (77, OperationStatus.COMPLETED, None)
    assert change.phases[-1]["ended_at_ms"] == change.ended_at_ms
