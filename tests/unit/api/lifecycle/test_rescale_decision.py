"""Every step of a rescale, as facts in and one step out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.steps import (
    AbandonChange,
    AdvanceChange,
    BeginSavepoint,
    Cause,
    CheckSavepoint,
    CompleteChange,
    CreateAttempt,
    EndAttempt,
    Launch,
    ReplaceAttempt,
    RetryRestore,
    RollBack,
    SwitchOver,
)
from keyscale.vocabulary import ChangePhase, CommandStatus, DesiredState, DriverState
from tests.support.control_plane.job_facts import (
    TIMEOUTS,
    attempt,
    command,
    job,
    lost,
    rescaling,
    restored,
    standby,
    step_of,
)

if TYPE_CHECKING:
    from keyscale.api.lifecycle.facts import AttemptFacts, JobFacts


def test_a_rescale_starts_the_new_driver_beside_the_running_one() -> None:
    assert step_of(rescaling(ChangePhase.REQUESTED)) == CreateAttempt(4, Cause.RESCALE, standby=True)
    stored = standby(process=ProcessState.UNLAUNCHED, driver_state=None, is_attached=False)
    assert step_of(rescaling(ChangePhase.REQUESTED, standby=stored)) == Launch(2)


def test_the_savepoint_waits_until_the_new_driver_is_warm() -> None:
    cold = standby(driver_state=None)
    assert step_of(rescaling(ChangePhase.REQUESTED, standby=cold)) is None
    assert step_of(rescaling(ChangePhase.REQUESTED, standby=standby())) == BeginSavepoint()
    slow = replace(cold, attached_age_ms=TIMEOUTS.warm_ms + 1)
    assert step_of(rescaling(ChangePhase.REQUESTED, standby=slow)) == BeginSavepoint()


@pytest.mark.parametrize("ended", [lost(), attempt(driver_state=DriverState.FAILED)])
def test_until_the_savepoint_is_commanded_an_ended_driver_leaves_the_job_at_its_parallelism(
    ended: AttemptFacts,
) -> None:
    assert isinstance(step_of(rescaling(ChangePhase.REQUESTED, active=ended, standby=standby())), AbandonChange)
    dead_standby = standby(process=ProcessState.DEAD, driver_state=None)
    assert isinstance(step_of(rescaling(ChangePhase.REQUESTED, standby=dead_standby)), AbandonChange)


def test_a_failed_savepoint_leaves_the_job_at_its_parallelism() -> None:
    failure = {"code": "CHECKPOINT_TIMEOUT", "message": "too slow"}
    failed = rescaling(ChangePhase.SAVEPOINT, change_command=command(CommandStatus.FAILED, failure=failure))
    assert step_of(failed) == AbandonChange(failure)


def test_a_published_savepoint_leads_to_the_stop() -> None:
    done = command(CommandStatus.COMPLETED)
    assert step_of(rescaling(ChangePhase.SAVEPOINT, change_command=done)) == AdvanceChange(ChangePhase.STOP)
    assert step_of(rescaling(ChangePhase.SAVEPOINT, change_command=done, active=lost())) == AdvanceChange(
        ChangePhase.STOP
    )


def test_whether_a_dead_driver_published_its_savepoint_is_read_from_the_store_and_never_guessed() -> None:
    step = step_of(rescaling(ChangePhase.SAVEPOINT, change_command=command(), active=lost()))
    assert isinstance(step, CheckSavepoint)
    assert isinstance(step.missing, AbandonChange)


def test_the_new_driver_takes_over_when_the_old_one_has_ended_or_takes_too_long() -> None:
    assert step_of(rescaling(ChangePhase.STOP, standby=standby())) is None
    ended = attempt(driver_state=DriverState.STOPPED)
    assert step_of(rescaling(ChangePhase.STOP, active=ended, standby=standby())) == SwitchOver()
    late = rescaling(ChangePhase.STOP, standby=standby(), change_phase_age_ms=TIMEOUTS.stop_ms + 1)
    assert step_of(late) == SwitchOver()


def test_a_restored_driver_is_verified_by_its_first_batch() -> None:
    assert step_of(rescaling(ChangePhase.RESTORE, active=restored(restored_at_ms=None))) is None
    assert step_of(rescaling(ChangePhase.RESTORE, active=restored())) == AdvanceChange(ChangePhase.VERIFY)
    assert step_of(rescaling(ChangePhase.VERIFY, active=restored())) is None
    committed = restored(first_commit_at_ms=1000)
    assert step_of(rescaling(ChangePhase.VERIFY, active=committed)) == CompleteChange(False, 1000)


def test_without_input_the_restored_state_is_enough() -> None:
    assert step_of(rescaling(ChangePhase.VERIFY, active=restored(waits_for_input=True))) == CompleteChange(False, 900)


def aged(facts: JobFacts, age_ms: int) -> JobFacts:
    assert facts.change is not None
    return replace(facts, change=replace(facts.change, phase_age_ms=age_ms))


def test_a_new_run_that_commits_nothing_in_its_time_goes_back_to_the_old_parallelism() -> None:
    slow = rescaling(ChangePhase.VERIFY, active=restored())
    assert step_of(aged(slow, TIMEOUTS.verify_ms)) is None
    step = step_of(aged(slow, TIMEOUTS.verify_ms + 1))
    assert isinstance(step, RollBack)
    assert (step.attempt, step.failure["code"]) == (2, "RESCALE_TIMED_OUT")
    assert step.failure["message"] == "the new driver committed no batch within 120 s"


def test_a_job_with_long_batches_has_more_time_for_its_first_one() -> None:
    minute = rescaling(ChangePhase.VERIFY, active=restored(), change_batch_duration_ms=60_000.0)
    assert step_of(aged(minute, 600_000)) is None
    assert isinstance(step_of(aged(minute, 600_001)), RollBack)


def test_a_restore_that_takes_too_long_goes_back_to_the_old_parallelism() -> None:
    restoring = rescaling(ChangePhase.RESTORE, active=restored(driver_state=DriverState.RESTORING, restored_at_ms=None))
    assert step_of(aged(restoring, TIMEOUTS.restore_ms)) is None
    step = step_of(aged(restoring, TIMEOUTS.restore_ms + 1))
    assert isinstance(step, RollBack)
    assert step.failure["message"] == "the new driver did not restore the state within 600 s"


def test_a_savepoint_that_takes_too_long_is_given_up_with_the_driver_that_takes_it() -> None:
    stuck = rescaling(ChangePhase.SAVEPOINT, change_command=command(), change_checkpoint_timeout_ms=5000)
    assert step_of(aged(stuck, TIMEOUTS.savepoint_ms + 5000)) is None
    step = step_of(aged(stuck, TIMEOUTS.savepoint_ms + 5001))
    assert isinstance(step, CheckSavepoint)
    assert isinstance(step.missing, AbandonChange)
    assert (step.missing.replaced, step.missing.failure["code"]) == (1, "RESCALE_TIMED_OUT")


def test_a_new_driver_that_does_not_get_warm_leaves_the_old_one_alone() -> None:
    cold = rescaling(ChangePhase.REQUESTED, standby=standby(driver_state=None, is_attached=False))
    assert step_of(aged(cold, TIMEOUTS.request_ms)) is None
    step = step_of(aged(cold, TIMEOUTS.request_ms + 1))
    assert isinstance(step, AbandonChange)
    assert step.replaced is None


@pytest.mark.parametrize("phase", [ChangePhase.RESTORE, ChangePhase.VERIFY])
def test_a_new_driver_that_dies_is_replaced_and_after_several_deaths_the_rescale_is_rolled_back(
    phase: ChangePhase,
) -> None:
    dead = lost(2, driver_state=DriverState.RESTORING)
    assert step_of(rescaling(phase, active=dead, change_tries=1)) == RetryRestore(2)
    assert step_of(rescaling(phase, active=dead, change_tries=2)) == RetryRestore(2)
    step = step_of(rescaling(phase, active=dead, change_tries=3))
    assert isinstance(step, RollBack)
    assert step.attempt == 2


@pytest.mark.parametrize("phase", [ChangePhase.RESTORE, ChangePhase.VERIFY])
def test_a_new_driver_that_fails_by_itself_rolls_the_rescale_back(phase: ChangePhase) -> None:
    failure = {"code": "JOB_RESTORE_REFUSED", "message": "no"}
    failed = attempt(2, driver_state=DriverState.FAILED, failure=failure)
    assert step_of(rescaling(phase, active=failed, change_tries=1)) == RollBack(2, failure)


def test_a_roll_back_ends_when_the_old_parallelism_runs() -> None:
    assert step_of(rescaling(ChangePhase.ROLL_BACK, active=attempt(3, driver_state=DriverState.RESTORING))) is None
    running = attempt(3, restored_at_ms=5, waits_for_input=True)
    assert step_of(rescaling(ChangePhase.ROLL_BACK, active=running)) == CompleteChange(True, 5)
    assert isinstance(step_of(rescaling(ChangePhase.ROLL_BACK, active=lost(3))), ReplaceAttempt)


def test_a_cancel_ends_both_drivers_of_a_rescale() -> None:
    cancelled = rescaling(ChangePhase.SAVEPOINT, desired=DesiredState.CANCELLED, standby=standby())
    assert step_of(cancelled) == EndAttempt(1)
    assert step_of(replace(cancelled, active=None)) == EndAttempt(2)


def test_a_standby_that_no_rescale_needs_is_ended() -> None:
    assert step_of(job(standby=standby())) == EndAttempt(2)
