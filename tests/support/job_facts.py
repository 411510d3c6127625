"""A job and its attempts as facts, for tests of decisions: each differs from a job that runs well in what is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api.lifecycle.decision import decide
from api.lifecycle.facts import AttemptFacts, JobFacts, OrderFacts, ProcessState, RescaleFacts, Timeouts
from db.statuses import CommandStatus, DesiredState, JobStatus, RescalePhase
from jobs.wire import DriverState

TIMEOUTS = Timeouts()


def attempt(number: int = 1, **facts: Any) -> AttemptFacts:
    return replace(
        AttemptFacts(
            number, parallelism=2, process=ProcessState.ALIVE, driver_state=DriverState.RUNNING, is_attached=True
        ),
        **facts,
    )


def job(**facts: Any) -> JobFacts:
    running = JobFacts(JobStatus.RUNNING, DesiredState.RUNNING, parallelism=2, active=attempt())
    return replace(running, **facts)


def lost(number: int = 1, **facts: Any) -> AttemptFacts:
    return attempt(number, process=ProcessState.DEAD, **facts)


def order(status: CommandStatus = CommandStatus.IN_PROGRESS, **facts: Any) -> OrderFacts:
    return replace(OrderFacts("op", status, attempt=1), **facts)


def rescaling(phase: RescalePhase, **facts: Any) -> JobFacts:
    """A rescale from 2 to 4; facts of the rescale are given with the prefix `rescale_`."""
    own = {name.removeprefix("rescale_"): value for name, value in facts.items() if name.startswith("rescale_")}
    rest = {name: value for name, value in facts.items() if not name.startswith("rescale_")}
    rescale = replace(RescaleFacts("r", phase, 2, 4, old_attempt=1), **own)
    return job(status=JobStatus.RESCALING, rescale=rescale, **rest)


def standby(**facts: Any) -> AttemptFacts:
    return attempt(2, **{"parallelism": 4, "driver_state": DriverState.STANDBY, **facts})


def restored(**facts: Any) -> AttemptFacts:
    return attempt(2, **{"parallelism": 4, "restored_at_ms": 900, **facts})


def step_of(facts: JobFacts) -> Any:
    return decide(facts, TIMEOUTS)
