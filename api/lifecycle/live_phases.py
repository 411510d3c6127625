"""The phases of a live rescale.

The running driver itself opens the next attempt. Pure.

    PREPARE     the driver builds the new subtasks beside its batches, and opens the next attempt between two batches
    SWITCH      batches wait until the next attempt is open; known from the driver's report afterwards
    VERIFY      the first batch runs at the new parallelism; if it fails, the driver opens the return

The driver speaks with the token of the attempt that it has opened last: a reserved attempt that reports is open. A live
rescale that fails before goes on with REQUESTED, and a new driver. Later failures are treated as for a new driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.vocabulary import CommandStatus, DriverState, RescaleMode

from .outcomes import failure, failure_of, outcome_of
from .steps import AbandonChange, FallBack, FollowReturn, FollowSwitch, ReserveAttempts, SendRescale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .facts import AttemptFacts, ChangeFacts, CommandFacts, JobFacts, Timeouts
    from .steps import Step

NOT_LIVE = "RESCALE_NOT_LIVE"
"""The code of the reason why a rescale takes a new driver."""


def why_not_live(mode: RescaleMode, state: str | None, slots: int | None, parallelism: int) -> Mapping[str, Any] | None:
    """Returns why a new driver carries a rescale out, or None.

    Args:
        mode: The job's setting.
        state: The driver's state.
        slots: The largest parallelism that its Spark can run at once; None: unknown.
        parallelism: The wanted parallelism.
    """
    if mode is RescaleMode.STANDBY:
        return failure(NOT_LIVE, "the job's rescale_mode is STANDBY")
    if state == DriverState.SLEEPING:
        return failure(NOT_LIVE, "the job sleeps, and its driver has ended Spark")
    if state != DriverState.RUNNING:
        return failure(NOT_LIVE, "the driver does not run the job yet")
    if slots is None:
        return failure(NOT_LIVE, "the driver does not support live rescales")
    if slots < parallelism:
        return failure(NOT_LIVE, f"Spark has {slots} task slots for subtasks; parallelism_limit reserves more of them")
    return None


def followed(facts: JobFacts, change: ChangeFacts) -> FollowSwitch | FollowReturn | None:
    """Returns the step after a driver has opened a reserved attempt."""
    opened = [attempt.number for attempt in facts.reserved if attempt.driver_state is not None]
    if not opened:
        return None
    return FollowSwitch() if max(opened) == change.new_attempt else FollowReturn()


def next_prepare_step(facts: JobFacts, change: ChangeFacts, timeouts: Timeouts) -> Step | None:
    """Returns the next step in the phase PREPARE; None means to wait."""
    active, command = facts.active, change.command
    if (step := followed(facts, change)) is not None:
        return step
    if (why := _why_given_up(active, command, timeouts)) is not None:
        return FallBack(why)
    if command is None:
        return SendRescale() if facts.reserved else ReserveAttempts()
    # The driver may have a checkpoint under way when the command arrives.
    limit_ms = change.checkpoint_timeout_ms + timeouts.prepare_ms + timeouts.answer_ms
    if active is None or change.phase_age_ms <= limit_ms:
        return None
    late = failure("RESCALE_TIMED_OUT", f"the driver did not rescale the job within {limit_ms / 1000:.0f} s")
    return AbandonChange(late, replaced=active.number)


def _why_given_up(
    active: AttemptFacts | None, command: CommandFacts | None, timeouts: Timeouts
) -> Mapping[str, Any] | None:
    if active is None:
        return failure("DRIVER_LOST", "the running driver ended before the rescale")
    if active.has_slept:
        return failure(NOT_LIVE, "the driver has fallen asleep")
    if (outcome := outcome_of(active, timeouts)) is not None:
        return failure_of(active, outcome)
    if command is not None and command.status is CommandStatus.FAILED:
        return command.failure or failure(NOT_LIVE, "the driver gave the live rescale up")
    return None
