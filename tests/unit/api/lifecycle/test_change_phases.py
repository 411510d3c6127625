"""A rescale that does not go as planned says why: each step with its failure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.change_phases import RESTORE_TRIES_MAX, next_change_step, warm_limit_ms
from keyscale.api.lifecycle.outcomes import Outcome, failure, failure_of
from keyscale.api.lifecycle.steps import (
    AbandonChange,
    BeginSavepoint,
    CheckSavepoint,
    CompleteChange,
    RetryRestore,
    RollBack,
    SwitchOver,
)
from keyscale.vocabulary import ChangePhase, CommandStatus, DriverState, OperationKind
from tests.support.control_plane.job_facts import TIMEOUTS, attempt, command, lost, rescaling, restored, standby

if TYPE_CHECKING:
    from keyscale.api.lifecycle.facts import AttemptFacts, JobFacts
    from keyscale.api.lifecycle.steps import Step

FAILED = {"code": "JOB_TASK_FAILED", "message": "Spark failed: Python worker failed to connect back."}
RAISED = {"code": "JOB_FUNCTION_FAILED", "message": "ValueError"}


def step_of(facts: JobFacts) -> Step | None:
    assert facts.change is not None
    return next_change_step(facts, facts.change, TIMEOUTS)


def silent(number: int) -> AttemptFacts:
    """An attempt of another host that was not heard of for too long."""
    return attempt(number, process=ProcessState.UNKNOWN, silent_ms=TIMEOUTS.silence_ms + 1)


def test_before_the_savepoint_it_is_abandoned_with_the_failure_of_the_driver_that_ended() -> None:
    requested = rescaling(ChangePhase.REQUESTED, standby=standby())
    gone = failure("DRIVER_LOST", "the running driver ended before the savepoint")
    assert step_of(replace(requested, active=None)) == AbandonChange(gone)
    for old in (lost(), silent(1)):
        assert step_of(replace(requested, active=old)) == AbandonChange(failure_of(old, Outcome.LOST))
    for new in (lost(2, exit_code=1), silent(2)):
        assert step_of(replace(requested, standby=new)) == AbandonChange(failure_of(new, Outcome.LOST))
    failed = standby(driver_state=DriverState.FAILED, failure=FAILED)
    assert step_of(replace(requested, standby=failed)) == AbandonChange(FAILED)


@pytest.mark.parametrize(("is_attached", "age_ms"), [(True, 0), (True, 1), (False, 1)])
def test_a_driver_is_warm_when_it_says_so_or_some_time_after_it_asked_for_work(
    is_attached: bool,
    age_ms: int,
) -> None:
    cold = standby(driver_state=None, is_attached=is_attached, attached_age_ms=TIMEOUTS.warm_ms + age_ms)
    step = step_of(rescaling(ChangePhase.REQUESTED, standby=cold))
    assert step == (BeginSavepoint() if is_attached and age_ms else None)


@pytest.mark.parametrize(
    ("earlier_ms", "limit_ms"),
    [
        ((), 120_000),
        ((2_000, 1_000), 30_000),
        ((2_000, 25_000, 3_000), 75_000),
        ((90_000,), 270_000),
        ((250_000,), 300_000),
    ],
)
def test_a_change_waits_for_its_driver_as_long_as_earlier_changes_of_the_job_suggest(
    earlier_ms: tuple[int, ...], limit_ms: int
) -> None:
    assert warm_limit_ms(earlier_ms, TIMEOUTS) == limit_ms
    cold = standby(driver_state=None, attached_age_ms=limit_ms)
    waiting = rescaling(ChangePhase.REQUESTED, standby=cold, change_earlier_warm_ms=earlier_ms)
    assert step_of(waiting) is None, "its downtime would begin while the new driver still warms up"
    assert step_of(replace(waiting, standby=replace(cold, attached_age_ms=limit_ms + 1))) == BeginSavepoint()


def test_a_driver_that_warms_up_for_longer_than_a_start_may_take_is_waited_for() -> None:
    cold = standby(driver_state=None, attached_age_ms=1000)
    late = rescaling(ChangePhase.REQUESTED, standby=cold, change_phase_age_ms=TIMEOUTS.request_ms + 1)
    assert step_of(late) is None


def test_a_driver_that_does_not_get_warm_in_time_is_named() -> None:
    cold = standby(driver_state=None, is_attached=False)
    late = rescaling(ChangePhase.REQUESTED, standby=cold, change_phase_age_ms=TIMEOUTS.request_ms + 1)
    why = failure("RESCALE_TIMED_OUT", "the new driver did not start within 300 s")
    assert step_of(late) == AbandonChange(why)


def test_without_a_savepoint_it_is_abandoned_with_the_reason() -> None:
    why = failure("SAVEPOINT_FAILED", "the savepoint failed")
    assert step_of(rescaling(ChangePhase.SAVEPOINT)) == AbandonChange(why)
    unexplained = rescaling(ChangePhase.SAVEPOINT, change_command=command(CommandStatus.FAILED))
    assert step_of(unexplained) == AbandonChange(why)


def test_a_driver_that_ended_in_its_savepoint_is_named_if_the_store_has_none() -> None:
    saving = rescaling(ChangePhase.SAVEPOINT, change_command=command())
    assert step_of(saving) is None
    gone = AbandonChange(failure("DRIVER_LOST", "the driver is gone"))
    assert step_of(replace(saving, active=None)) == CheckSavepoint("op", missing=gone)
    for old in (lost(), silent(1)):
        why = failure_of(old, Outcome.LOST)
        assert step_of(replace(saving, active=old)) == CheckSavepoint("op", missing=AbandonChange(why))
    failed = attempt(driver_state=DriverState.FAILED, failure=FAILED)
    assert step_of(replace(saving, active=failed)) == CheckSavepoint("op", missing=AbandonChange(FAILED))


@pytest.mark.parametrize("state", [DriverState.SLEEPING, DriverState.WOKEN])
def test_a_change_that_meets_a_driver_falling_asleep_continues_from_its_last_checkpoint(state: DriverState) -> None:
    asleep = replace(attempt(1), driver_state=state)
    warm = standby(driver_state=DriverState.STANDBY)
    assert step_of(replace(rescaling(ChangePhase.REQUESTED, standby=warm), active=asleep)) == SwitchOver()
    waiting = rescaling(ChangePhase.SAVEPOINT, standby=warm, change_command=command(CommandStatus.IN_PROGRESS))
    assert step_of(replace(waiting, active=asleep)) == SwitchOver()


def test_a_savepoint_that_never_ends_is_given_up_and_its_driver_replaced() -> None:
    limit_ms = TIMEOUTS.savepoint_ms + 5000
    stuck = rescaling(
        ChangePhase.SAVEPOINT,
        change_command=command(),
        change_checkpoint_timeout_ms=5000,
        change_phase_age_ms=limit_ms + 1,
    )
    why = failure("RESCALE_TIMED_OUT", "the old driver took no savepoint within 65 s")
    assert step_of(stuck) == CheckSavepoint("op", missing=AbandonChange(why, replaced=1))


def test_the_stop_is_over_when_the_old_driver_is_gone_or_its_time_is() -> None:
    stopping = rescaling(ChangePhase.STOP, standby=standby(), change_phase_age_ms=TIMEOUTS.stop_ms)
    assert step_of(stopping) is None
    for old in (None, lost(), silent(1)):
        assert step_of(replace(stopping, active=old)) == SwitchOver()


@pytest.mark.parametrize("phase", [ChangePhase.RESTORE, ChangePhase.VERIFY])
def test_a_new_driver_that_dies_is_replaced_a_few_times_and_then_the_job_goes_back(phase: ChangePhase) -> None:
    for new in (lost(2), silent(2), attempt(2, driver_state=DriverState.FENCED)):
        outcome = Outcome.FENCED if new.driver_state is DriverState.FENCED else Outcome.LOST
        for tries in range(RESTORE_TRIES_MAX + 1):
            step = step_of(rescaling(phase, active=new, change_tries=tries))
            again = tries < RESTORE_TRIES_MAX
            assert step == (RetryRestore(2) if again else RollBack(2, failure_of(new, outcome)))
    failed = attempt(2, driver_state=DriverState.FAILED, failure=RAISED)
    assert step_of(rescaling(phase, active=failed)) == RollBack(2, RAISED)
    gone = failure("DRIVER_LOST", "the new driver is gone")
    assert step_of(rescaling(phase, active=None)) == RollBack(None, gone)
    finished = attempt(2, driver_state=DriverState.FINISHED, restored_at_ms=900)
    assert step_of(rescaling(phase, active=finished)) == CompleteChange(False, 900)


@pytest.mark.parametrize("phase", [ChangePhase.RESTORE, ChangePhase.VERIFY])
@pytest.mark.parametrize("kind", [OperationKind.RESCALE, OperationKind.UPGRADE])
def test_a_new_driver_that_fails_because_of_its_host_is_replaced_a_few_times(
    phase: ChangePhase, kind: OperationKind
) -> None:
    failed = attempt(2, driver_state=DriverState.FAILED, failure=FAILED)
    for tries in range(RESTORE_TRIES_MAX + 1):
        step = step_of(rescaling(phase, active=failed, change_kind=kind, change_tries=tries))
        assert step == (RetryRestore(2) if tries < RESTORE_TRIES_MAX else RollBack(2, FAILED))
    for lasting in (RAISED, {**FAILED, "final": True}, {**FAILED, "code": "SINK_FORBIDDEN"}):
        failed = replace(failed, failure=lasting)
        assert step_of(rescaling(phase, active=failed, change_kind=kind)) == RollBack(2, lasting)


def test_a_new_program_that_fails_because_of_its_host_follows_its_restart_strategy() -> None:
    upgrading = rescaling(ChangePhase.VERIFY, change_kind=OperationKind.UPGRADE)
    assert step_of(replace(upgrading, active=restored(run_failure=FAILED))) is None
    assert step_of(replace(upgrading, active=restored(run_failure=RAISED))) == RollBack(2, RAISED)


def test_a_run_is_not_verified_before_it_is_restored() -> None:
    for new in (restored(restored_at_ms=None), restored(driver_state=DriverState.RESTORING)):
        committed = replace(new, first_commit_at_ms=1000, has_run_input=True, waits_for_input=True)
        assert step_of(rescaling(ChangePhase.RESTORE, active=committed)) is None
        assert step_of(rescaling(ChangePhase.VERIFY, active=committed)) is None
        assert step_of(rescaling(ChangePhase.ROLL_BACK, active=committed)) is None


def test_the_job_is_back_when_a_driver_runs_at_the_old_parallelism() -> None:
    assert step_of(rescaling(ChangePhase.ROLL_BACK, active=None)) is None
    assert step_of(rescaling(ChangePhase.ROLL_BACK, active=restored())) is None, "its downtime is not over"
    for back in (restored(waits_for_input=True), restored(run_failure={"code": "JOB_FUNCTION_FAILED"})):
        assert step_of(rescaling(ChangePhase.ROLL_BACK, active=back)) == CompleteChange(True, 900)
    late = rescaling(ChangePhase.ROLL_BACK, active=restored(), change_phase_age_ms=10**9)
    assert step_of(late) == CompleteChange(True, 900)
    waiting = {
        "driver_state": DriverState.RESTORING,
        "restored_at_ms": None,
        "run_failure": {"code": "JOB_FUNCTION_FAILED"},
    }
    to_restart = rescaling(ChangePhase.ROLL_BACK, active=restored(**waiting))
    assert step_of(to_restart) == CompleteChange(True, None), "it waits for its restart, maybe for hours"
    committed = restored(first_commit_at_ms=1000)
    assert step_of(rescaling(ChangePhase.ROLL_BACK, active=committed)) == CompleteChange(True, 1000)


def test_a_cancel_before_the_savepoint_leaves_the_old_driver_running() -> None:
    step = step_of(rescaling(ChangePhase.REQUESTED, standby=standby(), change_is_cancelled=True))
    assert isinstance(step, AbandonChange)
    assert (step.failure["code"], step.replaced) == ("CHANGE_CANCELLED", None)


@pytest.mark.parametrize("phase", [ChangePhase.SAVEPOINT, ChangePhase.STOP])
def test_a_cancel_does_not_take_back_the_command_that_ends_the_old_driver(phase: ChangePhase) -> None:
    facts = {"change_command": command(), "standby": standby(), "active": attempt(1)}
    assert step_of(rescaling(phase, **facts, change_is_cancelled=True)) == step_of(rescaling(phase, **facts))


@pytest.mark.parametrize("phase", [ChangePhase.RESTORE, ChangePhase.VERIFY])
def test_a_cancel_after_the_savepoint_leads_back_until_the_new_driver_has_committed(phase: ChangePhase) -> None:
    step = step_of(rescaling(phase, active=restored(), change_is_cancelled=True))
    assert isinstance(step, RollBack)
    assert (step.attempt, step.failure["code"]) == (2, "CHANGE_CANCELLED")
    committed = step_of(rescaling(phase, active=restored(first_commit_at_ms=1000), change_is_cancelled=True))
    assert not isinstance(committed, RollBack)


def test_a_change_that_leads_back_already_is_not_cancelled_again() -> None:
    back = step_of(rescaling(ChangePhase.ROLL_BACK, active=restored(), change_is_cancelled=True))
    assert back == step_of(rescaling(ChangePhase.ROLL_BACK, active=restored()))
