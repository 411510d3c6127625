"""How an attempt ended, with which failure, and when the next one may start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.outcomes import (
    FAILURES_MAX,
    Outcome,
    failure,
    failure_of,
    is_hung,
    outcome_of,
    replace_or_fail,
)
from keyscale.api.lifecycle.steps import FailJob, ReplaceAttempt
from keyscale.jobs.protocol.messages import Failure
from keyscale.jobs.protocol.specification import NoRestart
from keyscale.vocabulary import DriverState
from tests.support.control_plane.job_facts import TIMEOUTS, attempt, job, lost

if TYPE_CHECKING:
    from keyscale.api.lifecycle.facts import AttemptFacts

ENDED = {
    DriverState.STOPPED: Outcome.STOPPED,
    DriverState.FINISHED: Outcome.FINISHED,
    DriverState.FAILED: Outcome.FAILED,
    DriverState.FENCED: Outcome.FENCED,
    DriverState.WOKEN: Outcome.WOKEN,
}


@pytest.mark.parametrize("state", [*DriverState, None])
def test_a_driver_that_has_ended_says_how_even_if_its_process_is_dead(state: DriverState | None) -> None:
    assert outcome_of(attempt(driver_state=state), TIMEOUTS) == (ENDED.get(state) if state else None)
    dead = attempt(driver_state=state, process=ProcessState.DEAD)
    assert outcome_of(dead, TIMEOUTS) == (ENDED.get(state, Outcome.LOST) if state else Outcome.LOST)


@pytest.mark.parametrize("process", ProcessState)
@pytest.mark.parametrize("past_ms", [0, 1])
def test_only_a_driver_of_another_host_is_lost_by_its_silence(process: ProcessState, past_ms: int) -> None:
    silent = attempt(process=process, silent_ms=TIMEOUTS.silence_ms + past_ms)
    is_lost = process is ProcessState.DEAD or (process is ProcessState.UNKNOWN and past_ms > 0)
    assert outcome_of(silent, TIMEOUTS) == (Outcome.LOST if is_lost else None)


@pytest.mark.parametrize(
    ("facts", "limit", "clock"),
    [
        ({}, TIMEOUTS.silence_ms, "silent_ms"),
        ({"process": ProcessState.SUSPENDED}, TIMEOUTS.suspended_ms, "silent_ms"),
        ({"is_attached": False}, TIMEOUTS.attach_ms, "starting_ms"),
    ],
)
def test_a_process_hangs_once_its_limit_is_over_unless_its_driver_has_ended(
    facts: dict[str, Any], limit: int, clock: str
) -> None:
    assert not is_hung(attempt(**facts, **{clock: limit}), TIMEOUTS)
    assert is_hung(attempt(**facts, **{clock: limit + 1}), TIMEOUTS)
    assert not is_hung(attempt(**facts, **{clock: limit + 1}, driver_state=DriverState.FAILED), TIMEOUTS)


@pytest.mark.parametrize(
    "process", [ProcessState.UNLAUNCHED, ProcessState.STARTING, ProcessState.DEAD, ProcessState.UNKNOWN]
)
def test_without_a_process_on_this_host_nothing_hangs(process: ProcessState) -> None:
    silent = attempt(process=process, silent_ms=10**9, starting_ms=10**9, is_attached=False)
    assert not is_hung(silent, TIMEOUTS)


@pytest.mark.parametrize(
    ("ended", "outcome", "code", "message"),
    [
        (
            lost(3),
            Outcome.LOST,
            "DRIVER_LOST",
            "the driver of attempt 3 died; `./keyscale logs JOB --attempt 3` may say why",
        ),
        (
            lost(3, is_attached=False),
            Outcome.LOST,
            "DRIVER_LOST",
            (
                "the driver of attempt 3 died before it asked for work, or did not ask in time; "
                "`./keyscale logs JOB --attempt 3` may say why"
            ),
        ),
        (
            lost(3, exit_code=137),
            Outcome.LOST,
            "DRIVER_LOST",
            "the driver of attempt 3 died with exit code 137; `./keyscale logs JOB --attempt 3` may say why",
        ),
        (
            lost(3, exit_code=122),
            Outcome.LOST,
            "JOB_DISK_FULL",
            (
                "the files of the job on its host take more space than KEYSCALE_JOB_QUOTA_DISK allows: expire state"
                " with a TTL, or have an administrator raise the quota"
            ),
        ),
        (attempt(3), Outcome.FENCED, "DRIVER_FENCED", "attempt 3 was fenced by another attempt"),
        (attempt(3), Outcome.STOPPED, "DRIVER_ENDED", "the driver of attempt 3 ended by itself: STOPPED"),
    ],
)
def test_a_driver_that_says_nothing_has_a_failure_of_the_control_plane(
    ended: AttemptFacts, outcome: Outcome, code: str, message: str
) -> None:
    assert failure_of(ended, outcome) == failure(code, message)
    own = {"code": "MINE", "message": "its own"}
    assert failure_of(attempt(failure=own), outcome) == own


def test_a_failure_has_the_form_of_a_drivers() -> None:
    made = failure("DRIVER_LOST", "it died")
    assert (made["code"], made["message"]) == ("DRIVER_LOST", "it died")
    assert {name: value for name, value in made.items() if value is None} == {
        "traceback": None,
        "operator_uid": None,
        "subtask": None,
    }
    assert made.keys() <= Failure.model_fields.keys()


def test_the_pause_before_a_replacement_doubles_up_to_its_limit_until_the_job_is_given_up() -> None:
    steps = [
        replace_or_fail(job(consecutive_failures=failures), lost(3), Outcome.LOST, TIMEOUTS)
        for failures in range(FAILURES_MAX)
    ]
    why = failure_of(lost(3), Outcome.LOST)
    pauses_ms = [0, 1000, 2000, 4000, 8000, 16_000, 32_000]
    assert steps == [
        *(ReplaceAttempt(3, why, number, pause_ms) for number, pause_ms in enumerate(pauses_ms, 1)),
        FailJob(why),
    ]


@pytest.mark.parametrize("restart", [None, NoRestart()])
def test_a_fence_by_a_newer_attempt_never_fails_the_job(restart: NoRestart | None) -> None:
    facts = job(consecutive_failures=FAILURES_MAX, restart=restart)
    step = replace_or_fail(facts, attempt(3), Outcome.FENCED, TIMEOUTS)
    assert step == ReplaceAttempt(3, failure_of(attempt(3), Outcome.FENCED), FAILURES_MAX - 1, 32_000)


@pytest.mark.parametrize(("outcome", "is_final"), [(Outcome.FAILED, True), (Outcome.LOST, False)])
def test_a_final_failure_fails_the_job_only_if_the_driver_reported_it(
    outcome: Outcome,
    is_final: bool,
) -> None:
    why = {"code": "JOB_TASK_FAILED", "message": "no", "final": True}
    step = replace_or_fail(job(), attempt(failure=why), outcome, TIMEOUTS)
    assert (step == FailJob(why)) is is_final
    assert isinstance(step, FailJob) is is_final
