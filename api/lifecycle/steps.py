"""The closed set of steps that the reconciler can take. Each is idempotent, and small enough to be all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from db.statuses import JobStatus, RescalePhase
    from jobs.wire import FailureHistory


class Cause(StrEnum):
    """Why an attempt is made."""

    START = "start"
    RECOVER = "recover"
    RESCALE = "rescale"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """Stores a new attempt. `restore_from` None: from the latest checkpoint or savepoint there is."""

    parallelism: int
    cause: Cause
    standby: bool = False
    restore_from: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Starts an attempt's driver; a second time nothing happens."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kills what is left of an attempt's processes."""

    attempt: int


@dataclass(frozen=True, slots=True)
class MarkReaped:
    """Notes that nothing of an attempt is left, and deletes its local files."""

    attempt: int


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Ends an attempt that was wanted no more, or went as it should."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ReplaceAttempt:
    """Ends an attempt that was lost or failed; the next one starts after `backoff_ms`.

    `failures` is what the job's restart strategy goes by, if it has one.
    """

    attempt: int
    failure: Mapping[str, Any]
    consecutive_failures: int
    backoff_ms: int
    failures: FailureHistory | None = None


@dataclass(frozen=True, slots=True)
class FailJob:
    """Gives a job up until its user starts it again; everything of it that was in progress has failed."""

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SettleJob:
    """The job has ended as it was to: STOPPED or FINISHED."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class ShowStatus:
    """The job's status has changed."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class CheckSavepoint:
    """Reads back from the store whether an order's savepoint is there: its driver ended without saying so.

    Attributes:
        missing: The step to take if it is not there; if it is, the order is completed.
    """

    order: str
    missing: ReplaceAttempt | FailJob | AbandonRescale


@dataclass(frozen=True, slots=True)
class ReassignStop:
    """Gives the order to stop to the attempt that has taken the old one's place."""

    order: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """The savepoint of a stop has failed: the job is to run on."""

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdvanceRescale:
    """Begins the next phase of a rescale, whose only effect is in the database."""

    phase: RescalePhase


@dataclass(frozen=True, slots=True)
class OrderRescaleSavepoint:
    """Begins the phase SAVEPOINT: orders the old attempt to take it and end."""


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """Begins the phase RESTORE: ends the old attempt and lets the new one have the savepoint."""


@dataclass(frozen=True, slots=True)
class RetryRestore:
    """The new attempt was lost while it restored: another one has its turn, at the same parallelism."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonRescale:
    """Gives a rescale up before the old attempt has stopped: the job stays at its parallelism."""

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RollBack:
    """Begins the phase ROLL_BACK: the old parallelism, from the rescale's savepoint."""

    attempt: int | None
    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompleteRescale:
    """The job runs at the new parallelism, or (rolled back) at the old one."""

    rolled_back: bool
    resumed_at_ms: int | None


Step = (
    CreateAttempt
    | Launch
    | Kill
    | MarkReaped
    | EndAttempt
    | ReplaceAttempt
    | FailJob
    | SettleJob
    | ShowStatus
    | CheckSavepoint
    | ReassignStop
    | ResumeJob
    | AdvanceRescale
    | OrderRescaleSavepoint
    | SwitchOver
    | RetryRestore
    | AbandonRescale
    | RollBack
    | CompleteRescale
)
