"""Every step of a job's life, as facts in and one step out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.decision import STOP_TRIES_MAX, next_step, status_of
from keyscale.api.lifecycle.facts import JobFacts, Timeouts
from keyscale.api.lifecycle.outcomes import FAILURES_MAX
from keyscale.api.lifecycle.steps import (
    Cause,
    CheckSavepoint,
    CompleteStart,
    CreateAttempt,
    EndAttempt,
    FailJob,
    ForgetFailure,
    Kill,
    Launch,
    MarkReaped,
    ReassignStop,
    ReplaceAttempt,
    ResumeJob,
    SettleJob,
    ShowStatus,
    StopWithoutSavepoint,
)
from keyscale.jobs.protocol.restart import FATAL_CODES
from keyscale.jobs.protocol.specification import FixedDelayRestart
from keyscale.vocabulary import CommandStatus, DesiredState, DriverState, JobStatus
from tests.support.control_plane.job_facts import TIMEOUTS, attempt, command, job, lost, step_of

# --- running --------------------------------------------------------------------------------------------------------


def test_a_job_that_runs_as_wanted_is_left_alone() -> None:
    assert step_of(job()) is None


def test_a_started_job_gets_an_attempt_from_the_latest_checkpoint() -> None:
    assert step_of(job(status=JobStatus.SUBMITTING, active=None)) == CreateAttempt(2, Cause.START)


def test_a_stored_attempt_is_launched() -> None:
    stored = attempt(process=ProcessState.UNLAUNCHED, driver_state=None, is_attached=False)
    assert step_of(job(status=JobStatus.SUBMITTING, active=stored)) == Launch(1)


def test_a_job_whose_driver_runs_is_shown_as_running() -> None:
    assert step_of(job(status=JobStatus.SUBMITTING)) == ShowStatus(JobStatus.RUNNING)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"status": JobStatus.SUBMITTING, "active": None}, JobStatus.SUBMITTING),
        ({"status": JobStatus.SUBMITTING, "active": None, "restarts": 1}, JobStatus.RESTARTING),
        ({"status": JobStatus.RUNNING, "active": None}, JobStatus.RESTARTING),
        ({"status": JobStatus.RUNNING, "active": attempt(driver_state=DriverState.RESTORING)}, JobStatus.RESTARTING),
        ({"status": JobStatus.RESTARTING, "restarts": 1}, JobStatus.RUNNING),
        ({"desired": DesiredState.STOPPED, "stop": command()}, JobStatus.SAVEPOINTING),
        ({"desired": DesiredState.STOPPED, "stop": command(CommandStatus.COMPLETED)}, JobStatus.STOPPING),
        ({"desired": DesiredState.CANCELLED, "stop": command()}, JobStatus.STOPPING),
    ],
)
def test_the_status_follows_from_the_jobs_goal_and_its_driver(facts: dict[str, Any], status: JobStatus) -> None:
    assert status_of(job(**facts)) is status


def test_a_failure_is_shown_until_a_batch_is_committed_after_it() -> None:
    assert step_of(job(has_failure=True)) is None
    assert step_of(job(has_failure=True, active=attempt(first_commit_at_ms=5))) == ForgetFailure()
    assert step_of(job(has_failure=False, active=attempt(first_commit_at_ms=5))) is None
    assert step_of(job(status=JobStatus.FAILED, desired=DesiredState.STOPPED, has_failure=True, active=None)) is None


def test_a_dead_driver_is_replaced_at_once_the_first_time() -> None:
    step = step_of(job(active=lost(exit_code=137)))
    assert isinstance(step, ReplaceAttempt)
    assert (step.attempt, step.consecutive_failures, step.backoff_ms) == (1, 1, 0)
    assert step.failure["code"] == "DRIVER_LOST"
    assert "137" in step.failure["message"]


def test_further_replacements_without_progress_come_with_longer_and_longer_delays_up_to_a_minute() -> None:
    pauses = []
    for failures in range(1, FAILURES_MAX - 1):
        step = step_of(job(active=lost(), consecutive_failures=failures))
        assert isinstance(step, ReplaceAttempt)
        pauses.append(step.backoff_ms)
    assert pauses == [1000, 2000, 4000, 8000, 16000, 32000]
    longest = next_step(job(active=lost(), consecutive_failures=6), Timeouts(backoff_ms_max=5000))
    assert isinstance(longest, ReplaceAttempt)
    assert longest.backoff_ms == 5000


def test_progress_makes_the_next_failure_the_first_one_again() -> None:
    step = step_of(job(active=lost(has_progressed=True), consecutive_failures=6))
    assert isinstance(step, ReplaceAttempt)
    assert (step.consecutive_failures, step.backoff_ms) == (1, 0)


def test_a_job_that_never_gets_anywhere_is_given_up_with_its_last_failure() -> None:
    failure = {"code": "JOB_TASK_FAILED", "message": "a task has failed"}
    failed = attempt(driver_state=DriverState.FAILED, failure=failure)
    assert step_of(job(active=failed, consecutive_failures=FAILURES_MAX - 1)) == FailJob(failure)


@pytest.mark.parametrize("code", sorted(FATAL_CODES))
def test_a_failure_that_is_the_same_every_time_fails_the_job_at_once(code: str) -> None:
    failure = {"code": code, "message": "no", "traceback": "Traceback ..."}
    assert step_of(job(active=attempt(driver_state=DriverState.FAILED, failure=failure))) == FailJob(failure)


def test_during_a_pause_nothing_is_started() -> None:
    waiting = job(status=JobStatus.RESTARTING, active=None, restarts=2, start_in_ms=500)
    assert step_of(waiting) is None
    assert step_of(replace(waiting, start_in_ms=0)) == CreateAttempt(2, Cause.RECOVER)


def test_a_fenced_driver_is_replaced() -> None:
    assert isinstance(step_of(job(active=attempt(driver_state=DriverState.FENCED))), ReplaceAttempt)


def test_a_job_whose_input_has_ended_is_finished() -> None:
    assert step_of(job(active=attempt(driver_state=DriverState.FINISHED))) == SettleJob(JobStatus.FINISHED)


@pytest.mark.parametrize(
    ("facts", "limit_ms"),
    [
        ({"process": ProcessState.ALIVE}, TIMEOUTS.silence_ms),
        ({"process": ProcessState.SUSPENDED}, TIMEOUTS.suspended_ms),
    ],
)
def test_a_driver_that_hangs_is_killed_before_it_is_replaced(facts: dict[str, Any], limit_ms: int) -> None:
    assert step_of(job(active=attempt(**facts, silent_ms=limit_ms))) is None
    assert step_of(job(active=attempt(**facts, silent_ms=limit_ms + 1))) == Kill(1)


def test_a_driver_that_never_asks_for_work_is_killed() -> None:
    mute = attempt(driver_state=None, is_attached=False, starting_ms=TIMEOUTS.attach_ms + 1)
    assert step_of(job(status=JobStatus.SUBMITTING, active=mute)) == Kill(1)


def test_a_silent_driver_of_another_host_is_replaced_for_it_cannot_be_killed() -> None:
    away = attempt(process=ProcessState.UNKNOWN, silent_ms=TIMEOUTS.silence_ms + 1)
    assert isinstance(step_of(job(active=away)), ReplaceAttempt)
    assert step_of(job(active=replace(away, silent_ms=TIMEOUTS.silence_ms))) is None


@pytest.mark.parametrize(
    ("facts", "running", "expected"),
    [
        ({}, {}, CompleteStart()),
        ({"has_failure": True}, {"first_commit_at_ms": 6}, CompleteStart()),
        ({}, {"has_run_input": False, "waits_for_input": True}, CompleteStart()),
        ({"is_starting": False}, {}, None),
        ({}, {"has_run_input": False}, None),
        ({}, {"restored_at_ms": None}, None),
        ({"status": JobStatus.RESTARTING, "restarts": 1}, {}, ShowStatus(JobStatus.RUNNING)),
    ],
)
def test_a_start_is_complete_when_the_driver_has_processed_input_or_found_none(
    facts: dict[str, Any], running: dict[str, Any], expected: object
) -> None:
    active = attempt(**{"restored_at_ms": 5, "has_run_input": True, **running})
    assert step_of(job(**{"is_starting": True, "active": active, **facts})) == expected


def test_a_second_driver_that_no_change_needs_is_ended() -> None:
    assert step_of(job(standby=attempt(2))) == EndAttempt(2)
    assert step_of(job(status=JobStatus.SUBMITTING, standby=attempt(2))) == EndAttempt(2)


def test_a_driver_that_hangs_is_killed_before_anything_else_and_the_one_that_runs_the_job_first() -> None:
    hung = {"silent_ms": TIMEOUTS.silence_ms + 1}
    cancelled = job(desired=DesiredState.CANCELLED, active=attempt(**hung), standby=attempt(2, **hung))
    assert step_of(cancelled) == Kill(1)
    assert step_of(replace(cancelled, active=attempt())) == Kill(2)
    assert step_of(replace(cancelled, active=attempt(), standby=attempt(2))) == EndAttempt(1)


# --- cleaning up ---------------------------------------------------------------------------------------------------


def test_an_ended_attempt_gets_time_to_exit_and_is_then_killed() -> None:
    ended = attempt(7, state_age_ms=TIMEOUTS.exit_ms)
    assert step_of(job(ended=(ended,))) is None
    assert step_of(job(ended=(replace(ended, state_age_ms=TIMEOUTS.exit_ms + 1),))) == Kill(7)


def test_an_ended_attempt_that_is_suspended_is_killed_at_once() -> None:
    assert step_of(job(ended=(attempt(7, process=ProcessState.SUSPENDED),))) == Kill(7)


def test_an_attempt_of_which_nothing_is_left_is_reaped() -> None:
    assert step_of(job(ended=(lost(7),))) == MarkReaped(7)


@pytest.mark.parametrize(
    ("process", "in_time", "late"),
    [
        (ProcessState.ALIVE, None, Kill(7)),
        (ProcessState.UNKNOWN, None, MarkReaped(7)),
        (ProcessState.UNLAUNCHED, MarkReaped(7), MarkReaped(7)),
        (ProcessState.DEAD, MarkReaped(7), MarkReaped(7)),
        (ProcessState.SUSPENDED, Kill(7), Kill(7)),
    ],
)
def test_what_is_left_of_an_ended_attempt_is_killed_only_where_it_can_be(
    process: ProcessState, in_time: object, late: object
) -> None:
    ended = attempt(7, process=process, state_age_ms=TIMEOUTS.exit_ms)
    waiting = attempt(6, state_age_ms=0)
    assert step_of(job(ended=(waiting, ended))) == in_time
    assert step_of(job(ended=(waiting, replace(ended, state_age_ms=TIMEOUTS.exit_ms + 1)))) == late


def test_what_is_left_of_an_ended_attempt_waits_for_what_the_user_wants_and_sees() -> None:
    assert step_of(job(desired=DesiredState.CANCELLED, ended=(lost(7),))) == EndAttempt(1)
    assert step_of(job(status=JobStatus.SUBMITTING, ended=(lost(7),))) == ShowStatus(JobStatus.RUNNING)


# --- stopping -------------------------------------------------------------------------------------------------------


def stopping(**facts: Any) -> JobFacts:
    return job(**{"status": JobStatus.SAVEPOINTING, "desired": DesiredState.STOPPED, "stop": command(), **facts})


def test_a_stop_waits_for_its_savepoint() -> None:
    assert step_of(stopping()) is None


def test_a_job_is_stopped_when_its_savepoint_is_there_and_its_driver_has_ended() -> None:
    done = command(CommandStatus.COMPLETED)
    assert step_of(stopping(stop=done)) == ShowStatus(JobStatus.STOPPING)
    ended = attempt(driver_state=DriverState.STOPPED)
    assert step_of(stopping(stop=done, active=ended)) == SettleJob(JobStatus.STOPPED)


def test_a_drained_job_is_finished() -> None:
    ended = attempt(driver_state=DriverState.FINISHED)
    assert step_of(stopping(stop=command(CommandStatus.COMPLETED, drain=True), active=ended)) == SettleJob(
        JobStatus.FINISHED
    )


def test_a_driver_that_does_not_end_after_its_savepoint_is_ended() -> None:
    done = command(CommandStatus.COMPLETED, status_age_ms=TIMEOUTS.stop_ms + 1)
    assert step_of(stopping(status=JobStatus.STOPPING, stop=done)) == SettleJob(JobStatus.STOPPED)


def test_after_a_driver_died_in_a_stop_the_savepoint_is_looked_up_in_the_store() -> None:
    step = step_of(stopping(active=lost()))
    assert isinstance(step, CheckSavepoint)
    assert step.operation_id == "op"
    assert isinstance(step.missing, ReplaceAttempt)


def test_drivers_that_die_in_a_stop_are_replaced_with_longer_and_longer_delays_too() -> None:
    step = step_of(stopping(active=lost(), consecutive_failures=3))
    assert isinstance(step, CheckSavepoint)
    assert isinstance(step.missing, ReplaceAttempt)
    assert (step.missing.consecutive_failures, step.missing.backoff_ms) == (4, 4000)


def test_a_stop_whose_store_does_not_answer_ends_without_a_savepoint() -> None:
    step = step_of(stopping(active=lost()))
    assert isinstance(step, CheckSavepoint)
    assert step.unanswered is not None
    assert step.unanswered.failure["code"] == "STOPPED_WITHOUT_SAVEPOINT"
    assert "did not say within 60 s whether the savepoint is complete" in step.unanswered.failure["message"]


def test_a_stop_is_given_up_after_drivers_that_die_one_after_the_other() -> None:
    endless = FixedDelayRestart(attempts=99)
    for tries, missing in ((STOP_TRIES_MAX - 1, ReplaceAttempt), (STOP_TRIES_MAX, StopWithoutSavepoint)):
        step = step_of(stopping(active=lost(), restart=endless, stop=command(tries=tries)))
        assert isinstance(step, CheckSavepoint)
        assert isinstance(step.missing, missing)
    failed = attempt(driver_state=DriverState.FAILED, failure={"code": "JOB_NOT_PICKLABLE", "message": "m"})
    step = step_of(stopping(active=failed, stop=command(tries=STOP_TRIES_MAX)))
    assert isinstance(step.missing, FailJob), "a failure that no restart can help stays the job's failure"


def test_a_stop_without_a_savepoint_is_repeated_by_the_next_attempt() -> None:
    assert step_of(stopping(active=None, restarts=1)) == CreateAttempt(2, Cause.RECOVER)
    assert step_of(stopping(active=attempt(2))) == ReassignStop("op", 2)
    assert step_of(stopping(active=attempt(2), stop=command(attempt=2))) is None


def test_a_stop_does_not_wait_for_a_driver_that_cannot_be_started() -> None:
    unlaunched = attempt(process=ProcessState.UNLAUNCHED, driver_state=None, is_attached=False)
    for active in (unlaunched, None):
        step = step_of(stopping(active=active, start_fails=True))
        assert isinstance(step, StopWithoutSavepoint)
        assert step.failure["code"] == "STOPPED_WITHOUT_SAVEPOINT"
    assert step_of(stopping(active=unlaunched)) == Launch(1), "it may start"
    assert step_of(stopping(start_fails=True)) is None, "a driver runs"
    done = command(CommandStatus.COMPLETED)
    assert step_of(stopping(active=None, start_fails=True, stop=done)) == SettleJob(JobStatus.STOPPED)


def test_a_stop_in_the_pause_between_two_starts_does_not_wait_for_the_next_start() -> None:
    requested = command(attempt=0)
    waiting = stopping(active=None, restarts=3, start_in_ms=60_000, stop=requested)
    assert isinstance(step_of(waiting), StopWithoutSavepoint)
    assert step_of(replace(waiting, start_in_ms=0)) == CreateAttempt(2, Cause.RECOVER)
    assert step_of(replace(waiting, stop=command(attempt=1))) is None, "the driver that had to stop is replaced"


def test_a_job_whose_savepoint_fails_runs_on() -> None:
    failure = {"code": "X", "message": "disk full"}
    assert step_of(stopping(stop=command(CommandStatus.FAILED, failure=failure))) == ResumeJob(failure)


def test_a_cancelled_job_is_stopped_when_nothing_of_it_is_left() -> None:
    cancelled = job(status=JobStatus.STOPPING, desired=DesiredState.CANCELLED)
    assert step_of(cancelled) == EndAttempt(1)
    assert step_of(replace(cancelled, active=None, ended=(attempt(),))) is None
    assert step_of(replace(cancelled, active=None)) == SettleJob(JobStatus.STOPPED)


@pytest.mark.parametrize("status", [JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED])
def test_a_settled_job_is_left_alone(status: JobStatus) -> None:
    settled = job(status=status, desired=DesiredState.STOPPED, active=None, stop=command(CommandStatus.FAILED))
    assert step_of(settled) is None


@pytest.mark.parametrize(
    ("status", "settled"),
    [(JobStatus.SAVEPOINTING, SettleJob(JobStatus.STOPPED)), (JobStatus.STOPPED, None), (JobStatus.FAILED, None)],
)
def test_a_job_that_must_not_run_has_no_driver_left_before_it_is_stopped(
    status: JobStatus, settled: SettleJob | None
) -> None:
    both = job(status=status, desired=DesiredState.STOPPED, active=attempt(3), standby=attempt(4))
    assert step_of(both) == EndAttempt(3)
    assert step_of(replace(both, active=None)) == EndAttempt(4)
    assert step_of(replace(both, active=None, standby=None)) == settled


def test_a_job_whose_input_ends_while_it_stops_is_finished() -> None:
    assert step_of(stopping(active=attempt(driver_state=DriverState.FINISHED))) == SettleJob(JobStatus.FINISHED)


def test_a_savepoint_that_fails_without_a_reason_is_named_all_the_same() -> None:
    step = step_of(stopping(stop=command(CommandStatus.FAILED)))
    assert isinstance(step, ResumeJob)
    assert (step.failure["code"], step.failure["message"]) == ("SAVEPOINT_FAILED", "the savepoint failed")
