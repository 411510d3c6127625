"""Jobs with a restart strategy: the control plane replaces their drivers as it says, and gives up when it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api.lifecycle.decision import decide
from api.lifecycle.facts import AttemptFacts, JobFacts, ProcessState
from api.lifecycle.steps import FailJob, ReplaceAttempt
from db.statuses import DesiredState, JobStatus
from jobs.wire import DriverState, FailureHistory, FixedDelayRestart


def attempt(**facts: Any) -> AttemptFacts:
    alive = AttemptFacts(
        1, parallelism=2, process=ProcessState.ALIVE, driver_state=DriverState.RUNNING, is_attached=True
    )
    return replace(alive, **facts)


def running(**facts: Any) -> JobFacts:
    return replace(JobFacts(JobStatus.RUNNING, DesiredState.RUNNING, parallelism=2, active=attempt()), **facts)


def test_a_job_with_a_restart_strategy_is_started_again_as_that_says_until_it_gives_up() -> None:
    facts = running(
        active=attempt(process=ProcessState.DEAD),
        restart=FixedDelayRestart(attempts=2, delay_ms=700),
        now_ms=5000,
        consecutive_failures=9,
    )
    for count in (1, 2):
        step = decide(facts)
        assert isinstance(step, ReplaceAttempt)
        assert (step.backoff_ms, step.failures) == (700, FailureHistory(count=count, times_ms=[5000] * count))
        facts = replace(facts, failures=step.failures)
    given_up = decide(facts)
    assert isinstance(given_up, FailJob)
    assert "2 restarts are allowed" in given_up.failure["message"]


def test_a_driver_that_gave_up_by_the_strategy_is_not_replaced() -> None:
    why = {"code": "JOB_FUNCTION_FAILED", "message": "ValueError", "final": True}
    failed = attempt(driver_state=DriverState.FAILED, failure=why)
    assert decide(running(active=failed, restart=FixedDelayRestart(attempts=99))) == FailJob(why)
    retried = replace(failed, failure={**why, "final": False})
    assert isinstance(decide(running(active=retried, restart=FixedDelayRestart(attempts=99))), ReplaceAttempt)


def test_what_fails_the_same_way_every_time_is_tried_again_by_no_strategy() -> None:
    why = {"code": "JOB_SCRIPT_FAILED", "message": "no"}
    failed = attempt(driver_state=DriverState.FAILED, failure=why)
    assert decide(running(active=failed, restart=FixedDelayRestart(attempts=99))) == FailJob(why)
