"""A job whose driver waits for its turn to start."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.facts import AttemptFacts, Turn
from keyscale.api.lifecycle.steps import AbandonChange, AnnounceWait, EndAttempt, Launch, RollBack
from keyscale.vocabulary import ChangePhase, DesiredState, JobStatus
from tests.support.control_plane.job_facts import attempt, job, rescaling, step_of

LONG_MS = 1_000_000
TOLD = Turn(3, is_announced=True)


def unlaunched(number: int = 1, turn: Turn = TOLD, **facts: Any) -> AttemptFacts:
    given = {"driver_state": None, "is_attached": False, "process": ProcessState.UNLAUNCHED, "turn": turn, **facts}
    return attempt(number, **given)


@pytest.mark.parametrize("status", [JobStatus.SUBMITTING, JobStatus.RESTARTING])
def test_a_driver_is_launched_when_its_turn_comes_and_its_wait_is_announced_once(status: JobStatus) -> None:
    restarts = int(status is JobStatus.RESTARTING)
    steps = [
        step_of(job(status=status, restarts=restarts, active=unlaunched(turn=turn)))
        for turn in (Turn(3), TOLD, Turn(0, is_announced=True), Turn())
    ]
    assert steps == [AnnounceWait(1, 3), None, Launch(1), Launch(1)]


def test_a_driver_that_waits_for_its_turn_is_not_killed_for_its_silence() -> None:
    waiting = unlaunched(state_age_ms=LONG_MS, silent_ms=LONG_MS)
    assert step_of(job(status=JobStatus.SUBMITTING, active=waiting)) is None


def test_a_new_driver_whose_turn_has_come_is_launched_although_the_job_itself_waits() -> None:
    facts = rescaling(ChangePhase.REQUESTED, active=unlaunched(), standby=unlaunched(2, Turn()))
    assert step_of(facts) == Launch(2)


def test_a_user_can_cancel_a_job_that_waits_for_its_turn() -> None:
    facts = job(status=JobStatus.STOPPING, desired=DesiredState.CANCELLED, active=unlaunched())
    assert step_of(facts) == EndAttempt(1)


@pytest.mark.parametrize(("turn", "before"), [(TOLD, None), (Turn(), Launch(2))])
def test_a_change_whose_driver_is_not_launched_ends_when_its_user_cancels_it_or_the_old_driver_is_lost(
    turn: Turn, before: Launch | None
) -> None:
    waiting = unlaunched(2, turn)
    assert step_of(rescaling(ChangePhase.REQUESTED, standby=waiting)) == before
    for facts in (
        rescaling(ChangePhase.REQUESTED, standby=waiting, change_is_cancelled=True),
        rescaling(ChangePhase.REQUESTED, standby=waiting, active=attempt(process=ProcessState.DEAD)),
    ):
        assert isinstance(step_of(facts), AbandonChange)
    restoring = rescaling(ChangePhase.RESTORE, active=waiting, change_is_cancelled=True)
    assert isinstance(step_of(restoring), RollBack)


def test_a_change_whose_driver_cannot_be_launched_ends_at_its_time_limits() -> None:
    failing = unlaunched(2, Turn())
    requested = rescaling(ChangePhase.REQUESTED, standby=failing, change_phase_age_ms=LONG_MS)
    assert isinstance(step_of(requested), AbandonChange)
    restoring = rescaling(ChangePhase.RESTORE, active=failing, change_phase_age_ms=LONG_MS)
    assert isinstance(step_of(restoring), RollBack)
