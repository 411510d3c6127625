"""A sleeping job wakes without a restart, and stops at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.decision import next_step, waits_for_news
from keyscale.api.lifecycle.facts import AttemptFacts, CommandFacts, JobFacts
from keyscale.api.lifecycle.steps import CompleteStart, EndAttempt, ReplaceAttempt, ShowStatus, StopSleeping, WakeJob
from keyscale.vocabulary import CommandStatus, DesiredState, DriverState, JobStatus


def job(state: DriverState, **facts: Any) -> JobFacts:
    attempt = AttemptFacts(3, process=ProcessState.ALIVE, driver_state=state, is_attached=True)
    return replace(JobFacts(JobStatus.SLEEPING, DesiredState.RUNNING, revision=2, active=attempt), **facts)


def test_a_job_whose_driver_sleeps_shows_it_and_waits() -> None:
    asleep = job(DriverState.SLEEPING)
    assert next_step(replace(asleep, status=JobStatus.RUNNING)) == ShowStatus(JobStatus.SLEEPING)
    assert next_step(asleep) is None
    assert waits_for_news(asleep)


def test_a_start_is_complete_when_the_job_sleeps() -> None:
    asleep = job(DriverState.SLEEPING, is_starting=True)
    assert asleep.active is not None
    begun = replace(asleep.active, restored_at_ms=1, waits_for_input=True)
    assert next_step(replace(asleep, active=begun)) == CompleteStart()


def test_a_driver_that_has_woken_is_followed_at_once_without_a_restart() -> None:
    assert next_step(job(DriverState.WOKEN)) == WakeJob(3, 2)


def test_a_sleeping_driver_that_dies_is_replaced_as_any_driver() -> None:
    asleep = job(DriverState.SLEEPING)
    assert asleep.active is not None
    dead = replace(asleep, active=replace(asleep.active, process=ProcessState.DEAD))
    assert isinstance(next_step(dead), ReplaceAttempt)


def test_a_driver_that_woke_while_no_control_plane_answered_is_no_failure() -> None:
    asleep = job(DriverState.SLEEPING)
    assert asleep.active is not None
    ended = replace(asleep.active, process=ProcessState.DEAD, exit_code=0)
    assert next_step(replace(asleep, active=ended)) == WakeJob(3, 2)
    assert isinstance(next_step(replace(asleep, active=replace(ended, exit_code=137))), ReplaceAttempt)


def test_a_stop_of_a_sleeping_job_takes_effect_at_once_and_a_drain_wakes_it() -> None:
    command = CommandFacts("stop", CommandStatus.IN_PROGRESS, attempt=3)
    stopping = job(DriverState.SLEEPING, status=JobStatus.SAVEPOINTING, desired=DesiredState.STOPPED, stop=command)
    assert next_step(stopping) == StopSleeping(3)
    assert next_step(replace(stopping, stop=replace(command, drain=True))) is None
    woken = job(DriverState.WOKEN, status=JobStatus.SAVEPOINTING, desired=DesiredState.STOPPED, stop=command)
    assert next_step(woken) == WakeJob(3, 2)


def test_a_cancelled_job_ends_its_sleeping_driver() -> None:
    cancelled = job(DriverState.SLEEPING, status=JobStatus.STOPPING, desired=DesiredState.CANCELLED)
    assert next_step(cancelled) == EndAttempt(3)
