"""A job and its attempts as facts, for tests of decisions: all is well, except for the facts that are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.decision import next_step
from keyscale.api.lifecycle.facts import AttemptFacts, ChangeFacts, CommandFacts, JobFacts, Timeouts
from keyscale.vocabulary import ChangePhase, CommandStatus, DesiredState, DriverState, JobStatus

TIMEOUTS = Timeouts()


def attempt(number: int = 1, **facts: Any) -> AttemptFacts:
    return replace(
        AttemptFacts(number, process=ProcessState.ALIVE, driver_state=DriverState.RUNNING, is_attached=True),
        **facts,
    )


def job(**facts: Any) -> JobFacts:
    running = JobFacts(JobStatus.RUNNING, DesiredState.RUNNING, revision=2, active=attempt())
    return replace(running, **facts)


def lost(number: int = 1, **facts: Any) -> AttemptFacts:
    return attempt(number, process=ProcessState.DEAD, **facts)


def command(status: CommandStatus = CommandStatus.IN_PROGRESS, **facts: Any) -> CommandFacts:
    return replace(CommandFacts("op", status, attempt=1), **facts)


def rescaling(phase: ChangePhase, **facts: Any) -> JobFacts:
    """A rescale from revision 2 to 4; facts of the change are given with the prefix `change_`."""
    own = {name.removeprefix("change_"): value for name, value in facts.items() if name.startswith("change_")}
    rest = {name: value for name, value in facts.items() if not name.startswith("change_")}
    change = replace(ChangeFacts(phase, to_revision=4), **own)
    return job(status=JobStatus.RESCALING, change=change, **rest)


def standby(**facts: Any) -> AttemptFacts:
    return attempt(2, **{"driver_state": DriverState.STANDBY, **facts})


def restored(**facts: Any) -> AttemptFacts:
    return attempt(2, **{"restored_at_ms": 900, **facts})


def step_of(facts: JobFacts) -> Any:
    return next_step(facts, TIMEOUTS)
