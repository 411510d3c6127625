"""Properties of decisions, for any facts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.decision import next_step, status_of
from keyscale.api.lifecycle.facts import AttemptFacts, ChangeFacts, CommandFacts, JobFacts
from keyscale.api.lifecycle.outcomes import FAILURES_MAX
from keyscale.api.lifecycle.steps import CreateAttempt, Launch, RetryRestore, RollBack, SwitchOver
from keyscale.api.lifecycle.transitions import may_follow
from keyscale.vocabulary import ChangePhase, CommandStatus, DesiredState, DriverState, JobStatus
from tests.support.control_plane.job_facts import TIMEOUTS, command

FAILURES = st.sampled_from([None, {"code": "X", "message": "m"}, {"code": "JOB_SCRIPT_FAILED", "message": "m"}])


@st.composite
def attempts(draw: st.DrawFn, number: int) -> AttemptFacts:
    is_attached = draw(st.booleans())
    return AttemptFacts(
        number,
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
def command_facts(draw: st.DrawFn) -> CommandFacts:
    return CommandFacts(
        "op",
        draw(st.sampled_from(CommandStatus)),
        attempt=draw(st.integers(1, 3)),
        drain=draw(st.booleans()),
        status_age_ms=draw(st.sampled_from([0, 100_000])),
        failure=draw(FAILURES),
    )


@st.composite
def all_facts(draw: st.DrawFn) -> JobFacts:
    change = ChangeFacts(
        draw(st.sampled_from(ChangePhase)),
        to_revision=4,
        command=draw(st.none() | command_facts()),
        tries=draw(st.integers(0, 4)),
        phase_age_ms=draw(st.sampled_from([0, 1_000_000])),
    )
    return JobFacts(
        status=draw(st.sampled_from(JobStatus)),
        desired=draw(st.sampled_from(DesiredState)),
        revision=2,
        consecutive_failures=draw(st.integers(0, FAILURES_MAX)),
        restarts=draw(st.integers(0, 3)),
        start_in_ms=draw(st.sampled_from([0, 500])),
        active=draw(st.none() | attempts(1)),
        standby=draw(st.none() | attempts(2)),
        ended=tuple(draw(st.lists(attempts(9), max_size=1))),
        start_fails=draw(st.booleans()),
        change=draw(st.none() | st.just(change)),
        stop=draw(st.none() | command_facts()),
    )


@given(all_facts())
def test_there_is_a_decision_for_any_facts_and_it_is_always_the_same(facts: JobFacts) -> None:
    assert next_step(facts, TIMEOUTS) == next_step(facts, TIMEOUTS)


@given(all_facts())
def test_no_second_active_attempt_is_ever_made(facts: JobFacts) -> None:
    step = next_step(facts, TIMEOUTS)
    if isinstance(step, CreateAttempt):
        assert (facts.standby if step.standby else facts.active) is None


@given(all_facts())
def test_nothing_is_started_for_a_job_that_is_cancelled_or_settled(facts: JobFacts) -> None:
    wants_none = facts.desired is DesiredState.CANCELLED or (
        facts.desired is DesiredState.STOPPED and facts.stop is None
    )
    if wants_none:
        assert not isinstance(next_step(facts, TIMEOUTS), (CreateAttempt, Launch, RetryRestore, RollBack, SwitchOver))


@given(all_facts())
def test_the_old_driver_is_given_up_for_the_new_one_only_after_its_savepoint_is_published(facts: JobFacts) -> None:
    if isinstance(next_step(facts, TIMEOUTS), SwitchOver):
        assert facts.change is not None
        sleeps = facts.active is not None and facts.active.has_slept  # its last checkpoint has all state
        assert sleeps or facts.change.phase is ChangePhase.STOP


# The statuses in which a job can be, per desired state.
FOUND = {
    DesiredState.RUNNING: (
        JobStatus.SUBMITTING,
        JobStatus.RUNNING,
        JobStatus.SLEEPING,
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
    change = facts.change if status is JobStatus.RESCALING else None
    found = replace(facts, desired=desired, status=status, change=change, stop=facts.stop or command())
    assert may_follow(status, status_of(found))
