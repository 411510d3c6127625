"""Every step of a job's life, as facts in and one step out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.lifecycle.decision import decide, status_of
from api.lifecycle.endings import FAILURES_MAX, FATAL_CODES
from api.lifecycle.facts import AttemptFacts, JobFacts, OrderFacts, ProcessState, RescaleFacts, Timeouts
from api.lifecycle.states import may_follow
from api.lifecycle.steps import (
    AbandonRescale,
    AdvanceRescale,
    Cause,
    CheckSavepoint,
    CompleteRescale,
    CreateAttempt,
    EndAttempt,
    FailJob,
    Kill,
    Launch,
    MarkReaped,
    OrderRescaleSavepoint,
    ReassignStop,
    ReplaceAttempt,
    ResumeJob,
    RetryRestore,
    RollBack,
    SettleJob,
    ShowStatus,
    SwitchOver,
)
from db.statuses import CommandStatus, DesiredState, JobStatus, RescalePhase
from jobs.wire import DriverState

TIMEOUTS = Timeouts()


def attempt(number: int = 1, **facts: Any) -> AttemptFacts:
    return replace(
        AttemptFacts(
            number, parallelism=2, process=ProcessState.ALIVE, driver_state=DriverState.RUNNING, is_attached=True
        ),
        **facts,
    )


def job(**facts: Any) -> JobFacts:
    running = JobFacts(JobStatus.RUNNING, DesiredState.RUNNING, parallelism=2, active=attempt())
    return replace(running, **facts)


def lost(number: int = 1, **facts: Any) -> AttemptFacts:
    return attempt(number, process=ProcessState.DEAD, **facts)


def order(status: CommandStatus = CommandStatus.IN_PROGRESS, **facts: Any) -> OrderFacts:
    return replace(OrderFacts("op", status, attempt=1), **facts)


def rescaling(phase: RescalePhase, **facts: Any) -> JobFacts:
    """A rescale from 2 to 4; facts of the rescale are given with the prefix `rescale_`."""
    own = {name.removeprefix("rescale_"): value for name, value in facts.items() if name.startswith("rescale_")}
    rest = {name: value for name, value in facts.items() if not name.startswith("rescale_")}
    rescale = replace(RescaleFacts("r", phase, 2, 4, old_attempt=1), **own)
    return job(status=JobStatus.RESCALING, rescale=rescale, **rest)


def standby(**facts: Any) -> AttemptFacts:
    return attempt(2, **{"parallelism": 4, "driver_state": DriverState.STANDBY, **facts})


def restored(**facts: Any) -> AttemptFacts:
    return attempt(2, **{"parallelism": 4, "restored_at_ms": 900, **facts})


def step_of(facts: JobFacts) -> Any:
    return decide(facts, TIMEOUTS)


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


def test_a_dead_driver_is_replaced_at_once_the_first_time() -> None:
    step = step_of(job(active=lost(exit_code=137)))
    assert isinstance(step, ReplaceAttempt)
    assert (step.attempt, step.consecutive_failures, step.backoff_ms) == (1, 1, 0)
    assert step.failure["code"] == "DRIVER_LOST"
    assert "137" in step.failure["message"]


def test_further_replacements_without_progress_come_ever_later_up_to_a_minute() -> None:
    pauses = []
    for failures in range(1, FAILURES_MAX - 1):
        step = step_of(job(active=lost(), consecutive_failures=failures))
        assert isinstance(step, ReplaceAttempt)
        pauses.append(step.backoff_ms)
    assert pauses == [1000, 2000, 4000, 8000, 16000, 32000]
    longest = decide(job(active=lost(), consecutive_failures=6), Timeouts(backoff_ms_max=5000))
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
def test_what_fails_the_same_way_every_time_fails_the_job_at_once(code: str) -> None:
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
    mute = attempt(driver_state=None, is_attached=False, state_age_ms=TIMEOUTS.attach_ms + 1)
    assert step_of(job(status=JobStatus.SUBMITTING, active=mute)) == Kill(1)


def test_a_silent_driver_of_another_host_is_replaced_for_it_cannot_be_killed() -> None:
    away = attempt(process=ProcessState.UNKNOWN, silent_ms=TIMEOUTS.silence_ms + 1)
    assert isinstance(step_of(job(active=away)), ReplaceAttempt)
    assert step_of(job(active=replace(away, silent_ms=TIMEOUTS.silence_ms))) is None


# --- clearing away --------------------------------------------------------------------------------------------------


def test_an_ended_attempt_gets_time_to_exit_and_is_then_killed() -> None:
    ended = attempt(7, state_age_ms=TIMEOUTS.exit_ms)
    assert step_of(job(ended=(ended,))) is None
    assert step_of(job(ended=(replace(ended, state_age_ms=TIMEOUTS.exit_ms + 1),))) == Kill(7)


def test_an_ended_attempt_that_is_suspended_is_killed_at_once() -> None:
    assert step_of(job(ended=(attempt(7, process=ProcessState.SUSPENDED),))) == Kill(7)


def test_an_attempt_of_which_nothing_is_left_is_reaped() -> None:
    assert step_of(job(ended=(lost(7),))) == MarkReaped(7)


# --- stopping -------------------------------------------------------------------------------------------------------


def stopping(**facts: Any) -> JobFacts:
    return job(**{"status": JobStatus.SAVEPOINTING, "desired": DesiredState.STOPPED, "stop": order(), **facts})


def test_a_stop_waits_for_its_savepoint() -> None:
    assert step_of(stopping()) is None


def test_a_job_is_stopped_when_its_savepoint_is_there_and_its_driver_has_ended() -> None:
    done = order(CommandStatus.COMPLETED)
    assert step_of(stopping(stop=done)) == ShowStatus(JobStatus.STOPPING)
    ended = attempt(driver_state=DriverState.STOPPED)
    assert step_of(stopping(stop=done, active=ended)) == SettleJob(JobStatus.STOPPED)


def test_a_drained_job_is_finished() -> None:
    ended = attempt(driver_state=DriverState.FINISHED)
    assert step_of(stopping(stop=order(CommandStatus.COMPLETED, drain=True), active=ended)) == SettleJob(
        JobStatus.FINISHED
    )


def test_a_driver_that_does_not_end_after_its_savepoint_is_ended() -> None:
    done = order(CommandStatus.COMPLETED, status_age_ms=TIMEOUTS.stop_ms + 1)
    assert step_of(stopping(status=JobStatus.STOPPING, stop=done)) == SettleJob(JobStatus.STOPPED)


def test_after_a_driver_died_in_a_stop_the_store_is_asked_for_the_savepoint() -> None:
    step = step_of(stopping(active=lost()))
    assert isinstance(step, CheckSavepoint)
    assert step.order == "op"
    assert isinstance(step.missing, ReplaceAttempt)


def test_a_stop_without_a_savepoint_is_driven_again_by_the_next_attempt() -> None:
    assert step_of(stopping(active=None, restarts=1)) == CreateAttempt(2, Cause.RECOVER)
    assert step_of(stopping(active=attempt(2))) == ReassignStop("op", 2)
    assert step_of(stopping(active=attempt(2), stop=order(attempt=2))) is None


def test_a_job_whose_savepoint_fails_runs_on() -> None:
    failure = {"code": "X", "message": "disk full"}
    assert step_of(stopping(stop=order(CommandStatus.FAILED, failure=failure))) == ResumeJob(failure)


def test_a_cancelled_job_is_stopped_when_nothing_of_it_is_left() -> None:
    cancelled = job(status=JobStatus.STOPPING, desired=DesiredState.CANCELLED)
    assert step_of(cancelled) == EndAttempt(1)
    assert step_of(replace(cancelled, active=None, ended=(attempt(),))) is None
    assert step_of(replace(cancelled, active=None)) == SettleJob(JobStatus.STOPPED)


@pytest.mark.parametrize("status", [JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED])
def test_a_settled_job_is_left_alone(status: JobStatus) -> None:
    settled = job(status=status, desired=DesiredState.STOPPED, active=None, stop=order(CommandStatus.FAILED))
    assert step_of(settled) is None


# --- rescaling ------------------------------------------------------------------------------------------------------


def test_a_rescale_starts_the_new_driver_beside_the_running_one() -> None:
    assert step_of(rescaling(RescalePhase.REQUESTED)) == CreateAttempt(4, Cause.RESCALE, standby=True)
    stored = standby(process=ProcessState.UNLAUNCHED)
    assert step_of(rescaling(RescalePhase.REQUESTED, standby=stored)) == Launch(2)


def test_the_savepoint_waits_for_the_new_driver_to_be_warm() -> None:
    cold = standby(driver_state=None)
    assert step_of(rescaling(RescalePhase.REQUESTED, standby=cold)) is None
    assert step_of(rescaling(RescalePhase.REQUESTED, standby=standby())) == OrderRescaleSavepoint()
    slow = replace(cold, attached_age_ms=TIMEOUTS.warm_ms + 1)
    assert step_of(rescaling(RescalePhase.REQUESTED, standby=slow)) == OrderRescaleSavepoint()


@pytest.mark.parametrize("ended", [lost(), attempt(driver_state=DriverState.FAILED)])
def test_until_the_savepoint_is_ordered_an_ended_driver_leaves_the_job_at_its_parallelism(ended: AttemptFacts) -> None:
    assert isinstance(step_of(rescaling(RescalePhase.REQUESTED, active=ended, standby=standby())), AbandonRescale)
    dead_standby = standby(process=ProcessState.DEAD, driver_state=None)
    assert isinstance(step_of(rescaling(RescalePhase.REQUESTED, standby=dead_standby)), AbandonRescale)


def test_a_failed_savepoint_leaves_the_job_at_its_parallelism() -> None:
    failure = {"code": "CHECKPOINT_TIMEOUT", "message": "too slow"}
    failed = rescaling(RescalePhase.SAVEPOINT, rescale_order=order(CommandStatus.FAILED, failure=failure))
    assert step_of(failed) == AbandonRescale(failure)


def test_a_published_savepoint_leads_to_the_stop() -> None:
    done = order(CommandStatus.COMPLETED)
    assert step_of(rescaling(RescalePhase.SAVEPOINT, rescale_order=done)) == AdvanceRescale(RescalePhase.STOP)
    assert step_of(rescaling(RescalePhase.SAVEPOINT, rescale_order=done, active=lost())) == AdvanceRescale(
        RescalePhase.STOP
    )


def test_whether_a_dead_driver_published_its_savepoint_is_read_back_and_never_guessed() -> None:
    step = step_of(rescaling(RescalePhase.SAVEPOINT, rescale_order=order(), active=lost()))
    assert isinstance(step, CheckSavepoint)
    assert isinstance(step.missing, AbandonRescale)


def test_the_new_driver_has_its_turn_when_the_old_one_has_ended_or_will_not() -> None:
    assert step_of(rescaling(RescalePhase.STOP, standby=standby())) is None
    ended = attempt(driver_state=DriverState.STOPPED)
    assert step_of(rescaling(RescalePhase.STOP, active=ended, standby=standby())) == SwitchOver()
    late = rescaling(RescalePhase.STOP, standby=standby(), rescale_phase_age_ms=TIMEOUTS.stop_ms + 1)
    assert step_of(late) == SwitchOver()


def test_a_restored_driver_is_verified_by_its_first_batch() -> None:
    assert step_of(rescaling(RescalePhase.RESTORE, active=restored(restored_at_ms=None))) is None
    assert step_of(rescaling(RescalePhase.RESTORE, active=restored())) == AdvanceRescale(RescalePhase.VERIFY)
    assert step_of(rescaling(RescalePhase.VERIFY, active=restored())) is None
    committed = restored(first_commit_at_ms=1000)
    assert step_of(rescaling(RescalePhase.VERIFY, active=committed)) == CompleteRescale(False, 1000)


def test_without_input_the_restored_state_is_enough() -> None:
    assert step_of(rescaling(RescalePhase.VERIFY, active=restored(waits_for_input=True))) == CompleteRescale(False, 900)


def test_a_first_batch_that_takes_too_long_is_not_waited_for() -> None:
    slow = rescaling(RescalePhase.VERIFY, active=restored(), rescale_phase_age_ms=TIMEOUTS.verify_ms)
    assert step_of(slow) is None
    assert slow.rescale is not None
    late = replace(slow, rescale=replace(slow.rescale, phase_age_ms=TIMEOUTS.verify_ms + 1))
    assert step_of(late) == CompleteRescale(False, 900)


@pytest.mark.parametrize("phase", [RescalePhase.RESTORE, RescalePhase.VERIFY])
def test_a_new_driver_that_dies_is_replaced_and_one_that_dies_again_and_again_leads_back(phase: RescalePhase) -> None:
    dead = lost(2, driver_state=DriverState.RESTORING)
    assert step_of(rescaling(phase, active=dead, rescale_tries=1)) == RetryRestore(2)
    assert step_of(rescaling(phase, active=dead, rescale_tries=2)) == RetryRestore(2)
    step = step_of(rescaling(phase, active=dead, rescale_tries=3))
    assert isinstance(step, RollBack)
    assert step.attempt == 2


@pytest.mark.parametrize("phase", [RescalePhase.RESTORE, RescalePhase.VERIFY])
def test_a_new_driver_that_fails_by_itself_leads_back(phase: RescalePhase) -> None:
    failure = {"code": "JOB_RESTORE_REFUSED", "message": "no"}
    failed = attempt(2, driver_state=DriverState.FAILED, failure=failure)
    assert step_of(rescaling(phase, active=failed, rescale_tries=1)) == RollBack(2, failure)


def test_a_roll_back_ends_when_the_old_parallelism_runs() -> None:
    assert step_of(rescaling(RescalePhase.ROLL_BACK, active=attempt(3, driver_state=DriverState.RESTORING))) is None
    running = attempt(3, restored_at_ms=5)
    assert step_of(rescaling(RescalePhase.ROLL_BACK, active=running)) == CompleteRescale(True, 5)
    assert isinstance(step_of(rescaling(RescalePhase.ROLL_BACK, active=lost(3))), ReplaceAttempt)


def test_a_cancel_ends_both_drivers_of_a_rescale() -> None:
    cancelled = rescaling(RescalePhase.SAVEPOINT, desired=DesiredState.CANCELLED, standby=standby())
    assert step_of(cancelled) == EndAttempt(1)
    assert step_of(replace(cancelled, active=None)) == EndAttempt(2)


def test_a_standby_that_no_rescale_needs_is_ended() -> None:
    assert step_of(job(standby=standby())) == EndAttempt(2)


# --- whatever the facts ---------------------------------------------------------------------------------------------

FAILURES = st.sampled_from([None, {"code": "X", "message": "m"}, {"code": "JOB_SCRIPT_FAILED", "message": "m"}])


@st.composite
def attempts(draw: st.DrawFn, number: int) -> AttemptFacts:
    is_attached = draw(st.booleans())
    return AttemptFacts(
        number,
        parallelism=draw(st.sampled_from([2, 4])),
        process=draw(st.sampled_from(ProcessState)),
        driver_state=draw(st.sampled_from([None, *DriverState])) if is_attached else None,
        is_attached=is_attached,
        silent_ms=draw(st.sampled_from([0, 100_000])),
        state_age_ms=draw(st.sampled_from([0, 1_000_000])),
        restored_at_ms=draw(st.sampled_from([None, 5])),
        first_commit_at_ms=draw(st.sampled_from([None, 6])),
        has_progressed=draw(st.booleans()),
        failure=draw(FAILURES),
    )


@st.composite
def orders(draw: st.DrawFn) -> OrderFacts:
    return OrderFacts(
        "op",
        draw(st.sampled_from(CommandStatus)),
        attempt=draw(st.integers(1, 3)),
        drain=draw(st.booleans()),
        status_age_ms=draw(st.sampled_from([0, 100_000])),
        failure=draw(FAILURES),
    )


@st.composite
def all_facts(draw: st.DrawFn) -> JobFacts:
    rescale = RescaleFacts(
        "r",
        draw(st.sampled_from(RescalePhase)),
        2,
        4,
        old_attempt=1,
        order=draw(st.none() | orders()),
        tries=draw(st.integers(0, 4)),
        phase_age_ms=draw(st.sampled_from([0, 1_000_000])),
    )
    return JobFacts(
        status=draw(st.sampled_from(JobStatus)),
        desired=draw(st.sampled_from(DesiredState)),
        parallelism=2,
        consecutive_failures=draw(st.integers(0, FAILURES_MAX)),
        restarts=draw(st.integers(0, 3)),
        start_in_ms=draw(st.sampled_from([0, 500])),
        active=draw(st.none() | attempts(1)),
        standby=draw(st.none() | attempts(2)),
        ended=tuple(draw(st.lists(attempts(9), max_size=1))),
        rescale=draw(st.none() | st.just(rescale)),
        stop=draw(st.none() | orders()),
    )


@given(all_facts())
def test_there_is_a_decision_for_any_facts_and_it_is_always_the_same(facts: JobFacts) -> None:
    assert decide(facts, TIMEOUTS) == decide(facts, TIMEOUTS)


@given(all_facts())
def test_no_second_active_attempt_is_ever_made(facts: JobFacts) -> None:
    step = decide(facts, TIMEOUTS)
    if isinstance(step, CreateAttempt):
        assert (facts.standby if step.standby else facts.active) is None


@given(all_facts())
def test_nothing_is_started_for_a_job_that_is_cancelled_or_settled(facts: JobFacts) -> None:
    wants_none = facts.desired is DesiredState.CANCELLED or (
        facts.desired is DesiredState.STOPPED and facts.stop is None
    )
    if wants_none:
        assert not isinstance(decide(facts, TIMEOUTS), (CreateAttempt, Launch, RetryRestore, RollBack, SwitchOver))


@given(all_facts())
def test_the_old_driver_is_given_up_for_the_new_one_only_after_its_savepoint_is_published(facts: JobFacts) -> None:
    if isinstance(decide(facts, TIMEOUTS), SwitchOver):
        assert facts.rescale is not None
        assert facts.rescale.phase is RescalePhase.STOP


# In which statuses a job can be found while this is wanted of it.
FOUND = {
    DesiredState.RUNNING: (
        JobStatus.SUBMITTING,
        JobStatus.RUNNING,
        JobStatus.RESTARTING,
        JobStatus.SAVEPOINTING,  # its stop has just failed
        JobStatus.RESCALING,
    ),
    DesiredState.STOPPED: (JobStatus.SAVEPOINTING, JobStatus.STOPPING),
    DesiredState.CANCELLED: (JobStatus.STOPPING,),
}


@pytest.mark.parametrize(("desired", "status"), [(desired, status) for desired in FOUND for status in FOUND[desired]])
@given(facts=all_facts())
def test_the_status_that_is_shown_next_can_follow_the_one_before(
    desired: DesiredState, status: JobStatus, facts: JobFacts
) -> None:
    rescale = facts.rescale if status is JobStatus.RESCALING else None
    found = replace(facts, desired=desired, status=status, rescale=rescale, stop=facts.stop or order())
    assert may_follow(status, status_of(found))
