"""The steps of an upgrade that differ from those of a rescale."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from keyscale.api.lifecycle.decision import status_of
from keyscale.api.lifecycle.outcomes import failure
from keyscale.api.lifecycle.steps import (
    AbandonChange,
    BeginSavepoint,
    Cause,
    CompleteChange,
    CreateAttempt,
    RollBack,
    SwitchOver,
)
from keyscale.vocabulary import ChangePhase, DriverState, JobStatus, OperationKind, UpgradeMode
from tests.support.control_plane.job_facts import lost, rescaling, restored, standby, step_of

if TYPE_CHECKING:
    from keyscale.api.lifecycle.facts import JobFacts

RAISED = failure("USER_FUNCTION_FAILED", "ValueError")


def upgrading(phase: ChangePhase, mode: UpgradeMode = UpgradeMode.SAVEPOINT, **facts: Any) -> JobFacts:
    found = rescaling(phase, change_kind=OperationKind.UPGRADE, change_mode=mode, **facts)
    return replace(found, status=JobStatus.UPGRADING)


def test_a_job_is_shown_as_upgrading_unless_only_its_parallelism_changes() -> None:
    assert status_of(upgrading(ChangePhase.REQUESTED)) is JobStatus.UPGRADING
    assert status_of(rescaling(ChangePhase.REQUESTED)) is JobStatus.RESCALING


def test_an_upgrade_starts_a_driver_of_the_new_revision_beside_the_running_one() -> None:
    assert step_of(upgrading(ChangePhase.REQUESTED)) == CreateAttempt(4, Cause.UPGRADE, standby=True)
    assert step_of(upgrading(ChangePhase.REQUESTED, standby=standby())) == BeginSavepoint()


def test_an_upgrade_from_the_last_state_takes_no_savepoint_and_needs_no_running_driver() -> None:
    last = UpgradeMode.LAST_STATE
    for active in (lost(), None):
        facts = upgrading(ChangePhase.REQUESTED, last, active=active)
        assert step_of(facts) == CreateAttempt(4, Cause.UPGRADE, standby=True)
    warm = upgrading(ChangePhase.REQUESTED, last, active=lost(), standby=standby())
    assert step_of(warm) == SwitchOver()
    assert isinstance(step_of(upgrading(ChangePhase.REQUESTED, active=lost(), standby=standby())), AbandonChange)


def test_a_new_program_that_fails_is_rolled_back_although_its_driver_would_try_again() -> None:
    for phase in (ChangePhase.RESTORE, ChangePhase.VERIFY):
        active = restored(driver_state=DriverState.RESTORING, run_failure=RAISED)
        assert step_of(upgrading(phase, active=active)) == RollBack(2, RAISED)
        assert step_of(rescaling(phase, active=active)) is None, "a rescale runs the same program: it may recover"


def test_a_new_program_is_not_verified_by_a_batch_of_timers() -> None:
    timers = restored(first_commit_at_ms=1000)
    assert step_of(upgrading(ChangePhase.VERIFY, active=timers)) is None, "its functions may fail on the first record"
    committed = replace(timers, has_run_input=True)
    assert step_of(upgrading(ChangePhase.VERIFY, active=committed)) == CompleteChange(False, 1000)
