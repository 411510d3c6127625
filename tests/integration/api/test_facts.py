"""The facts from which a job's next step is decided are those of its rows and its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.fact_reader import FactReader
from keyscale.api.lifecycle.facts import ChangeFacts, CommandFacts, JobFacts, Timeouts
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.repeated_faults import EarlierRun
from keyscale.api.lifecycle.steps import (
    BeginSavepoint,
    Cause,
    CreateAttempt,
    MarkReaped,
    ReplaceAttempt,
    SettleJob,
    ShowStatus,
)
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.db.models import Attempt, Job, Revision
from keyscale.db.repositories import jobs
from keyscale.jobs.protocol.messages import FailureHistory
from keyscale.jobs.protocol.specification import FixedDelayRestart, NoRestart
from keyscale.vocabulary import ChangePhase, CommandStatus, DriverState, JobStatus, OperationKind, UpgradeMode

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database

FAILURE = {"code": "JOB_FUNCTION_FAILED", "message": "it raises"}
TIMEOUTS = Timeouts(healthy_ms=60_000)


class Processes:
    """In place of the launcher: the first attempt's process has died with exit code 3, all others live."""

    def inspect(self, attempt: Attempt) -> Seen:
        return Seen(ProcessState.DEAD, 3) if attempt.number == 1 else Seen(ProcessState.ALIVE)


class Facts:
    """The job `flights`, whose rows a test sets, and its facts. The test moves the monotonic clock."""

    def __init__(self, context: Context, job_id: str) -> None:
        self.seconds = 0.0
        self._context, self._job_id = context, job_id
        self._reader = FactReader(cast("Any", Processes()), Stopwatch(lambda: self.seconds), TIMEOUTS)

    def read(self) -> JobFacts:
        with self._context.sessions.begin() as session:
            return self._reader.read(session, session.get_one(Job, self._job_id))

    def take(self, *steps: Any) -> None:
        with self._context.sessions.begin() as session:
            found = jobs.lock(session, self._job_id)
            assert found is not None
            for step in steps:
                apply(step, JobTransaction(session, found))

    def set(self, **columns: Any) -> None:
        self._set(Job, self._job_id, columns)

    def set_attempt(self, number: int, **columns: Any) -> None:
        self._set(Attempt, (self._job_id, number), columns)

    def set_revision(self, number: int, **settings: Any) -> None:
        with self._context.sessions.begin() as session:
            revision = session.get_one(Revision, (self._job_id, number))
            revision.spec = {**revision.spec, **settings}

    def end(self, number: int) -> None:
        with self._context.sessions.begin() as session:
            found = jobs.lock(session, self._job_id)
            assert found is not None
            JobTransaction(session, found).end_attempt(number, FAILURE)

    def _set(self, table: type[Any], key: Any, columns: dict[str, Any]) -> None:
        with self._context.sessions.begin() as session:
            row = session.get_one(table, key)
            for name, value in columns.items():
                setattr(row, name, value)


@pytest.fixture
def facts(context: Context, job: dict[str, Any], client: httpx.Client) -> Facts:
    """The job, of which attempt 1 runs revision 1."""
    client.post("/v1/jobs/flights/start")
    made = Facts(context, job["id"])
    made.take(CreateAttempt(1, Cause.START), ShowStatus(JobStatus.RUNNING))
    return made


def test_a_change_has_the_limits_of_the_revision_that_runs_and_counts_its_own_drivers(
    facts: Facts, client: httpx.Client
) -> None:
    facts.set_attempt(1, metrics={"batch_duration_ms": 1500.0})
    answer = client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "mine"})
    assert answer.status_code == 202, answer.text
    facts.set_revision(1, checkpoints={"timeout_ms": 50_000})
    facts.set_revision(2, checkpoints={"timeout_ms": 70_000})
    change = ChangeFacts(
        phase=ChangePhase.REQUESTED,
        to_revision=2,
        kind=OperationKind.RESCALE,
        mode=UpgradeMode.SAVEPOINT,
        checkpoint_timeout_ms=50_000,
        batch_duration_ms=1500.0,
    )
    assert facts.read().change == change
    facts.take(CreateAttempt(2, Cause.RESCALE, standby=True), BeginSavepoint())
    client.post("/v1/operations/mine/cancel")
    facts.read()
    facts.seconds = 5.0
    read = facts.read()
    assert read.change is not None
    assert (read.change.phase, read.change.tries, read.change.is_cancelled) == (ChangePhase.SAVEPOINT, 1, True)
    assert read.change.phase_age_ms == 5000
    assert read.change.command == CommandFacts("mine", CommandStatus.IN_PROGRESS, 1, status_age_ms=5000)
    assert (read.revision, read.active and read.active.number, read.standby and read.standby.number) == (1, 1, 2)


def test_an_attempt_is_what_its_driver_reported_and_its_process_is(facts: Facts) -> None:
    active = facts.read().active
    assert active is not None
    assert (active.process, active.exit_code, active.is_attached) == (ProcessState.DEAD, 3, False)
    assert (active.driver_state, active.has_run_input, active.has_progressed) == (None, False, False)
    metrics = {"input_batches": 0, "waits_for_input": True, "last_failure": FAILURE}
    facts.set_attempt(1, driver_state="RUNNING", attached_at_ms=1, running_at_ms=2, restored_at_ms=3, metrics=metrics)
    facts.read()
    facts.seconds = 70.0
    active = facts.read().active
    assert active is not None
    assert (active.driver_state, active.is_attached, active.restored_at_ms) == (DriverState.RUNNING, True, 3)
    assert (active.waits_for_input, active.run_failure, active.failure) == (True, FAILURE, None)
    assert (active.has_run_input, active.has_progressed) == (False, True), "it has run for more than a minute"
    assert (active.silent_ms, active.state_age_ms, active.attached_age_ms) == (70_000, 70_000, 70_000)
    facts.set_attempt(1, first_commit_at_ms=4)
    committed = facts.read().active
    assert committed is not None
    assert (committed.first_commit_at_ms, committed.has_run_input) == (4, False), "of timers alone"
    facts.set_attempt(1, metrics={"input_batches": 1})
    assert (running := facts.read().active) is not None
    assert running.has_run_input
    assert running.silent_ms == 70_000, "its heartbeat has the same time"
    facts.set_attempt(1, heartbeat_at_ms=9)
    assert (heard := facts.read().active) is not None
    assert heard.silent_ms == 0


def test_a_stop_has_its_command_and_an_ended_attempt_is_named_until_it_is_reaped(
    facts: Facts, client: httpx.Client
) -> None:
    assert client.post("/v1/jobs/flights/drain", json={"id": "end"}).status_code == 202
    assert facts.read().stop == CommandFacts("end", CommandStatus.IN_PROGRESS, 1, drain=True)
    facts.end(1)
    assert [attempt.number for attempt in facts.read().ended] == [1]
    facts.take(MarkReaped(1))
    assert facts.read().ended == ()


def test_the_earlier_runs_are_those_since_the_last_start_of_the_user(facts: Facts, client: httpx.Client) -> None:
    facts.set_attempt(1, assigned_at_ms=1, created_at_ms=1)
    facts.end(1)
    facts.take(SettleJob(JobStatus.STOPPED))
    assert client.post("/v1/jobs/flights/start").status_code == 202
    facts.take(CreateAttempt(1, Cause.START))
    facts.set_attempt(2, assigned_at_ms=1, first_commit_at_ms=7)
    facts.end(2)
    facts.take(CreateAttempt(1, Cause.RECOVER))
    assert facts.read().earlier == (), "they are read after a failure only"
    facts.set_attempt(3, failure=FAILURE)
    assert facts.read().earlier == (EarlierRun(FAILURE, has_committed=True),)


def test_the_longer_history_of_failures_counts(facts: Facts) -> None:
    facts.set(failures={"count": 1, "times_ms": []})
    facts.set_attempt(1, metrics={"failures": {"count": 2, "times_ms": []}})
    assert facts.read().failures.count == 2


def test_the_failures_that_a_step_has_counted_are_known_to_the_next_one(facts: Facts) -> None:
    facts.take(ReplaceAttempt(1, FAILURE, 2, 0, FailureHistory(count=2, times_ms=[5, 6])))
    read = facts.read()
    assert (read.failures, read.consecutive_failures, read.restarts) == (FailureHistory(count=2, times_ms=[5, 6]), 2, 1)
    assert (read.has_failure, read.status, read.start_in_ms) == (True, JobStatus.RESTARTING, 0)


def test_a_jobs_restart_strategy_outranks_that_of_its_program(facts: Facts) -> None:
    assert facts.read().restart is None
    facts.set_attempt(1, metrics={"restart": {"type": "none"}})
    assert facts.read().restart == NoRestart()
    facts.set_revision(1, restart={"type": "fixed-delay", "attempts": 2, "delay_ms": 5})
    assert facts.read().restart == FixedDelayRestart(attempts=2, delay_ms=5)
