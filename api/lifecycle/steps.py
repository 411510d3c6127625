"""The closed set of steps that the reconciler can take.

Each step is idempotent, and small enough to be one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.jobs.protocol.messages import FailureHistory
    from keyscale.state.doors.catalogue import JobCounters
    from keyscale.vocabulary import ChangePhase, JobStatus


class Cause(StrEnum):
    """Why an attempt is created."""

    START = "start"
    RECOVER = "recover"
    RESCALE = "rescale"
    LIVE_RESCALE = "live rescale"
    RESTART = "restart"
    WAKE = "wake"
    UPGRADE = "upgrade"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """Stores a new attempt of a revision.

    It restores as requested, or from the latest checkpoint.

    Attributes:
        revision: The revision.
        cause: Why the attempt is created.
        standby: Whether it starts beside the active attempt.
        after: The highest attempt in the commit log: a database from a backup may not know it.
        counters: The job's counters in the commit log; None if unknown.
    """

    revision: int
    cause: Cause
    standby: bool = False
    after: int = 0
    counters: JobCounters | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Starts an attempt's driver; a second launch has no effect."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AnnounceWait:
    """Tells users that an attempt's launch waits for its turn.

    Attributes:
        attempt: The attempt.
        place: Its place in the line.
    """

    attempt: int
    place: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kills an attempt's remaining processes."""

    attempt: int


@dataclass(frozen=True, slots=True)
class MarkReaped:
    """Records that an attempt's processes are gone; deletes its local files.

    Attributes:
        attempt: The attempt.
        counters: The job's counters in the commit log; None if unknown.
    """

    attempt: int
    counters: JobCounters | None = None


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Ends an attempt, or records its end."""

    attempt: int


@dataclass(frozen=True, slots=True)
class WakeJob:
    """Replaces an attempt that has slept; the new attempt takes pending snapshots.

    Attributes:
        attempt: The attempt.
        revision: The revision of the new attempt.
    """

    attempt: int
    revision: int


@dataclass(frozen=True, slots=True)
class StopSleeping:
    """Stops a sleeping job; its last checkpoint has all state.

    Attributes:
        attempt: The sleeping attempt.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class ReplaceAttempt:
    """Ends an attempt that was lost or failed.

    The next attempt starts after `backoff_ms`.

    `failures` is the history that the job's restart strategy counts, if the job has a strategy.
    """

    attempt: int
    failure: Mapping[str, Any]
    consecutive_failures: int
    backoff_ms: int
    failures: FailureHistory | None = None


@dataclass(frozen=True, slots=True)
class FailJob:
    """Gives a job up until its user starts it again.

    Everything in progress fails with it.
    """

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SettleJob:
    """The job has ended as intended: STOPPED or FINISHED."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class StopWithoutSavepoint:
    """Stops a job that has no driver to take a savepoint.

    Attributes:
        failure: Why there is no savepoint.
    """

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShowStatus:
    """The job's status has changed."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class CompleteStart:
    """Completes a start, as the job has processed its first input."""


@dataclass(frozen=True, slots=True)
class ForgetFailure:
    """Clears the failure that users see, as a batch was committed since."""


@dataclass(frozen=True, slots=True)
class CheckSavepoint:
    """Reads from the store whether a command's savepoint exists.

    Its driver ended without reporting it.

    Attributes:
        operation_id: The operation that takes the savepoint. Its command is completed if the savepoint exists.
        missing: The step to take if the savepoint does not exist.
        unanswered: The step to take if the store does not answer for too long; None: the same step.
    """

    operation_id: str
    missing: ReplaceAttempt | FailJob | AbandonChange | StopWithoutSavepoint
    unanswered: StopWithoutSavepoint | None = None


@dataclass(frozen=True, slots=True)
class ReassignStop:
    """Gives the stop command to the attempt that replaced the old attempt."""

    operation_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """The savepoint of a stop failed: the job runs on."""

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdvanceChange:
    """Begins the next phase of a change.

    Its only effect is in the database.
    """

    phase: ChangePhase


@dataclass(frozen=True, slots=True)
class BeginSavepoint:
    """Begins the phase SAVEPOINT of a change.

    It commands the old attempt to take a savepoint and end.
    """


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """Begins the phase RESTORE of a change.

    It ends the old attempt and gives the state to the new attempt.
    """


@dataclass(frozen=True, slots=True)
class ReserveAttempts:
    """Reserves the attempts of a live rescale.

    They are the next attempt and the return.

    Attributes:
        after: The highest attempt in the commit log.
    """

    after: int = 0


@dataclass(frozen=True, slots=True)
class SendRescale:
    """Commands the driver to rescale its job.

    The records of the reserved attempts are stored before.
    """


@dataclass(frozen=True, slots=True)
class FallBack:
    """Carries a live rescale out by a new driver.

    Attributes:
        failure: Why.
    """

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FollowSwitch:
    """Begins the phase VERIFY of a live rescale.

    The driver has opened the next attempt.
    """


@dataclass(frozen=True, slots=True)
class FollowReturn:
    """Begins the phase ROLL_BACK of a live rescale.

    The driver has opened the return.
    """


@dataclass(frozen=True, slots=True)
class RetryRestore:
    """Retries a restore with another attempt of the same revision.

    The new attempt was lost while it restored.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonChange:
    """Gives a change up before the old attempt has stopped.

    The job keeps its revision.

    Attributes:
        failure: Why.
        replaced: The old attempt, if it is stuck and must be replaced.
    """

    failure: Mapping[str, Any]
    replaced: int | None = None


@dataclass(frozen=True, slots=True)
class NoteWait:
    """Notes why the present phase of a change waits."""

    why: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RollBack:
    """Begins the phase ROLL_BACK of a change.

    The job returns to the old revision, from the change's savepoint.
    """

    attempt: int | None
    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompleteChange:
    """Completes a change: the job runs the new or the old revision."""

    rolled_back: bool
    resumed_at_ms: int | None


Step = (
    CreateAttempt
    | Launch
    | AnnounceWait
    | Kill
    | MarkReaped
    | EndAttempt
    | WakeJob
    | StopSleeping
    | ReplaceAttempt
    | FailJob
    | SettleJob
    | StopWithoutSavepoint
    | ShowStatus
    | CompleteStart
    | ForgetFailure
    | CheckSavepoint
    | ReassignStop
    | ResumeJob
    | AdvanceChange
    | BeginSavepoint
    | SwitchOver
    | ReserveAttempts
    | SendRescale
    | FallBack
    | FollowSwitch
    | FollowReturn
    | RetryRestore
    | AbandonChange
    | NoteWait
    | RollBack
    | CompleteChange
)
