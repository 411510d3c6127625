"""Every step of a live rescale, as facts in and one step out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.lifecycle.live_phases import why_not_live
from keyscale.api.lifecycle.steps import (
    AbandonChange,
    CompleteChange,
    FallBack,
    FollowReturn,
    FollowSwitch,
    ReserveAttempts,
    RetryRestore,
    RollBack,
    SendRescale,
)
from keyscale.vocabulary import ChangePhase, CommandStatus, DriverState, RescaleMode
from tests.support.control_plane.job_facts import (
    TIMEOUTS,
    attempt,
    command,
    job,
    lost,
    rescaling,
    restored,
    step_of,
)

if TYPE_CHECKING:
    from keyscale.api.lifecycle.facts import AttemptFacts, JobFacts

NEXT, RETURN = attempt(2, driver_state=None), attempt(3, driver_state=None)


def preparing(**facts: Any) -> JobFacts:
    return rescaling(ChangePhase.PREPARE, **{"reserved": (NEXT, RETURN), "change_new_attempt": 2, **facts})


def verifying(**facts: Any) -> JobFacts:
    return rescaling(ChangePhase.VERIFY, **{"reserved": (RETURN,), "change_new_attempt": 2, **facts})


def opened(facts: AttemptFacts) -> AttemptFacts:
    return replace(facts, driver_state=DriverState.RUNNING)


def test_attempts_are_reserved_before_the_driver_is_commanded() -> None:
    assert step_of(preparing(reserved=(), change_new_attempt=None)) == ReserveAttempts()
    assert step_of(preparing()) == SendRescale()
    assert step_of(preparing(change_command=command())) is None


def test_a_reserved_attempt_that_reports_is_followed() -> None:
    assert step_of(preparing(change_command=command(), reserved=(opened(NEXT), RETURN))) == FollowSwitch()
    both = (opened(NEXT), opened(RETURN))
    assert step_of(preparing(change_command=command(), reserved=both)) == FollowReturn()
    assert step_of(preparing(change_command=command(), reserved=(NEXT, opened(RETURN)))) == FollowReturn()


def test_a_switch_counts_more_than_a_cancel_a_failure_and_a_silent_old_attempt() -> None:
    switched = {"reserved": (opened(NEXT), RETURN)}
    for late in (
        {"change_is_cancelled": True},
        {"change_command": command(CommandStatus.FAILED)},
        {"active": attempt(silent_ms=TIMEOUTS.suspended_ms)},
        {"change_phase_age_ms": 600_000 + TIMEOUTS.prepare_ms + TIMEOUTS.answer_ms + 1},
    ):
        assert step_of(preparing(**{"change_command": command(), **switched, **late})) == FollowSwitch()


@pytest.mark.parametrize("ended", [lost(), attempt(driver_state=DriverState.FAILED), None])
def test_a_driver_that_ends_before_the_switch_leaves_the_rescale_to_a_new_driver(ended: AttemptFacts | None) -> None:
    assert isinstance(step_of(preparing(change_command=command(), active=ended)), FallBack)


@pytest.mark.parametrize("state", [DriverState.SLEEPING, DriverState.WOKEN])
def test_a_driver_that_has_fallen_asleep_leaves_the_rescale_to_a_new_driver(state: DriverState) -> None:
    why = {"code": "RESCALE_NOT_LIVE", "message": "the driver has fallen asleep"}
    for commands in ({}, {"change_command": command()}):
        step = step_of(preparing(active=attempt(driver_state=state), **commands))
        assert isinstance(step, FallBack)
        assert step.failure.items() >= why.items()


def test_a_driver_that_gives_up_leaves_the_rescale_to_a_new_driver() -> None:
    why = {"code": "RESCALE_TIMEOUT", "message": "too slow"}
    failed = command(CommandStatus.FAILED, failure=why)
    assert step_of(preparing(change_command=failed)) == FallBack(why)


def test_a_cancelled_rescale_waits_for_the_answer_of_its_driver() -> None:
    assert step_of(preparing(change_command=command(), change_is_cancelled=True)) is None
    step = step_of(preparing(change_command=command(CommandStatus.FAILED), change_is_cancelled=True))
    assert isinstance(step, AbandonChange)
    assert step.failure["code"] == "CHANGE_CANCELLED"
    assert isinstance(step_of(preparing(change_is_cancelled=True)), AbandonChange)


def test_a_driver_that_never_answers_is_replaced_once_a_checkpoint_under_way_must_have_ended() -> None:
    checkpoint_ms = 7_000
    limit_ms = checkpoint_ms + TIMEOUTS.prepare_ms + TIMEOUTS.answer_ms
    silent = {"change_command": command(), "change_checkpoint_timeout_ms": checkpoint_ms}
    assert step_of(preparing(**silent, change_phase_age_ms=limit_ms)) is None
    step = step_of(preparing(**silent, change_phase_age_ms=limit_ms + 1))
    assert isinstance(step, AbandonChange)
    assert (step.replaced, step.failure["code"]) == (1, "RESCALE_TIMED_OUT")


def test_a_switch_is_verified_as_a_restore_is() -> None:
    assert step_of(verifying(active=restored())) is None
    assert step_of(verifying(active=restored(first_commit_at_ms=1000))) == CompleteChange(False, 1000)
    assert step_of(verifying(active=restored(waits_for_input=True))) == CompleteChange(False, 900)


def test_a_rescale_that_is_cancelled_after_the_switch_goes_back_unless_its_first_batch_is_committed() -> None:
    step = step_of(verifying(active=restored(), change_is_cancelled=True))
    assert isinstance(step, RollBack)
    assert (step.attempt, step.failure["code"]) == (2, "CHANGE_CANCELLED")
    committed = restored(first_commit_at_ms=1000)
    assert step_of(verifying(active=committed, change_is_cancelled=True)) == CompleteChange(False, 1000)


def test_a_driver_that_went_back_is_followed() -> None:
    assert step_of(verifying(active=restored(), reserved=(opened(RETURN),))) == FollowReturn()


def test_a_driver_that_dies_after_the_switch_is_replaced_at_the_new_parallelism() -> None:
    assert step_of(verifying(active=lost(2))) == RetryRestore(2)
    assert isinstance(step_of(verifying(active=lost(2), change_tries=3)), RollBack)


def test_an_attempt_that_the_driver_has_not_opened_is_never_killed() -> None:
    assert step_of(job(reserved=(lost(2), lost(3)))) is None


@pytest.mark.parametrize(
    ("mode", "state", "slots", "reason"),
    [
        (RescaleMode.LIVE, DriverState.RUNNING, 4, None),
        (RescaleMode.LIVE, DriverState.RUNNING, 3, "Spark has 3 task slots for subtasks"),
        (RescaleMode.LIVE, DriverState.RUNNING, None, "does not support live rescales"),
        (RescaleMode.LIVE, DriverState.RESTORING, 4, "does not run the job yet"),
        (RescaleMode.LIVE, None, None, "does not run the job yet"),
        (RescaleMode.LIVE, DriverState.SLEEPING, 4, "the job sleeps"),
        (RescaleMode.STANDBY, DriverState.RUNNING, 4, "rescale_mode is STANDBY"),
    ],
)
def test_only_a_running_driver_with_enough_slots_rescales_live(
    mode: RescaleMode, state: DriverState | None, slots: int | None, reason: str | None
) -> None:
    why = why_not_live(mode, state, slots, 4)
    assert (why is None) if reason is None else (why is not None and reason in why["message"])
