"""Jobs with a restart strategy: it decides when the control plane replaces their drivers and when it gives up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.decision import next_step
from keyscale.api.lifecycle.facts import AttemptFacts, JobFacts
from keyscale.api.lifecycle.steps import FailJob, ReplaceAttempt
from keyscale.jobs.protocol.messages import FailureHistory
from keyscale.jobs.protocol.specification import FixedDelayRestart
from keyscale.vocabulary import DesiredState, DriverState, JobStatus


def attempt(**facts: Any) -> AttemptFacts:
    alive = AttemptFacts(1, process=ProcessState.ALIVE, driver_state=DriverState.RUNNING, is_attached=True)
    return replace(alive, **facts)


def running(**facts: Any) -> JobFacts:
    return replace(JobFacts(JobStatus.RUNNING, DesiredState.RUNNING, revision=2, active=attempt()), **facts)


def test_a_job_with_a_restart_strategy_is_started_again_until_the_strategy_gives_up() -> None:
    facts = running(
        active=attempt(process=ProcessState.DEAD),
        restart=FixedDelayRestart(attempts=2, delay_ms=700),
        now_ms=5000,
        consecutive_failures=9,
    )
    for count in (1, 2):
        step = next_step(facts)
        assert isinstance(step, ReplaceAttempt)
        assert (step.backoff_ms, step.failures) == (700, FailureHistory(count=count, times_ms=[5000] * count))
        assert (step.attempt, step.consecutive_failures) == (1, 10), "should the strategy be taken away"
        facts = replace(facts, failures=step.failures)
    given_up = next_step(facts)
    assert isinstance(given_up, FailJob)
    assert "the limit is 2 restarts" in given_up.failure["message"]


def test_a_driver_that_gave_up_by_the_strategy_is_not_replaced() -> None:
    why = {"code": "JOB_FUNCTION_FAILED", "message": "ValueError", "final": True}
    failed = attempt(driver_state=DriverState.FAILED, failure=why)
    assert next_step(running(active=failed, restart=FixedDelayRestart(attempts=99))) == FailJob(why)
    retried = replace(failed, failure={**why, "final": False})
    assert isinstance(next_step(running(active=retried, restart=FixedDelayRestart(attempts=99))), ReplaceAttempt)


@pytest.mark.parametrize("code", ["JOB_SCRIPT_FAILED", "JOB_OUTPUT_MISMATCH"])
def test_no_strategy_repeats_a_failure_that_is_the_same_every_time(code: str) -> None:
    why = {"code": code, "message": "no"}
    failed = attempt(driver_state=DriverState.FAILED, failure=why)
    assert next_step(running(active=failed, restart=FixedDelayRestart(attempts=99))) == FailJob(why)
