"""What the next step of a job is decided from: plain values, read before, so that deciding is pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jobs.wire import FailureHistory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from db.statuses import CommandStatus, DesiredState, JobStatus, RescalePhase
    from jobs.wire import DriverState, RestartStrategy

NO_FAILURES = FailureHistory()


class ProcessState(StrEnum):
    """What is seen of an attempt's processes."""

    UNLAUNCHED = "UNLAUNCHED"  # the launcher has not been told to start it, or died before it noted that it did
    STARTING = "STARTING"
    ALIVE = "ALIVE"
    SUSPENDED = "SUSPENDED"  # stopped by a signal
    DEAD = "DEAD"
    UNKNOWN = "UNKNOWN"  # it was started on another host; only its heartbeats tell


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long is waited for what, in milliseconds of a monotonic clock.

    Attributes:
        silence_ms: Without a heartbeat, a driver whose process lives is given up and killed.
        suspended_ms: The same for one that is stopped by a signal.
        attach_ms: From the launch until the driver asks for work.
        warm_ms: From the request for work until a standby that says nothing more counts as warm.
        stop_ms: From the savepoint until a driver that does not end is ended.
        exit_ms: From the end of an attempt until its processes are killed.
        verify_ms: A restored job that neither commits a first batch nor says that it has no input counts as verified after this.
        backoff_ms_max: Longest pause between two starts.
        healthy_ms: An attempt that ran this long has made progress, even without input.
    """

    silence_ms: int = 60_000
    suspended_ms: int = 20_000
    attach_ms: int = 180_000
    warm_ms: int = 20_000
    stop_ms: int = 20_000
    exit_ms: int = 10_000
    verify_ms: int = 30_000
    backoff_ms_max: int = 60_000
    healthy_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """An attempt.

    Attributes:
        silent_ms: Since the last sign of life, as seen by this reconciler.
        state_age_ms: Since its stage or launch last changed, as seen by this reconciler.
        waits_for_input: It has looked for input and found none.
        has_progressed: It has committed a batch, or ran long enough to be called healthy.
    """

    number: int
    parallelism: int
    process: ProcessState
    driver_state: DriverState | None = None
    is_attached: bool = False
    silent_ms: int = 0
    state_age_ms: int = 0
    attached_age_ms: int = 0
    restored_at_ms: int | None = None
    first_commit_at_ms: int | None = None
    last_commit_at_ms: int | None = None
    waits_for_input: bool = False
    has_progressed: bool = False
    failure: Mapping[str, Any] | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """An order to stop with a savepoint: of a stop, or of a rescale.

    Attributes:
        status_age_ms: Since its status last changed, as seen by this reconciler.
    """

    id: str
    status: CommandStatus
    attempt: int
    drain: bool = False
    status_age_ms: int = 0
    failure: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RescaleFacts:
    """The rescale in progress.

    Attributes:
        tries: How many drivers have been given the savepoint at the new parallelism.
        phase_age_ms: Since the phase began, as seen by this reconciler.
    """

    id: str
    phase: RescalePhase
    from_parallelism: int
    to_parallelism: int
    old_attempt: int
    order: OrderFacts | None = None
    tries: int = 0
    phase_age_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job and everything that bears upon its next step.

    Attributes:
        start_in_ms: Until the next start may be tried.
        restart: What the job was created with, or what its script says; None: the control plane's own rule.
        failures: Since its user started it, as far as a restart strategy has counted them.
        now_ms: Milliseconds since the epoch.
        jitter: Drawn for this decision, between -1 and 1.
        ended: Ended attempts of which processes may be left.
    """

    status: JobStatus
    desired: DesiredState
    parallelism: int
    consecutive_failures: int = 0
    restarts: int = 0
    start_in_ms: int = 0
    restart: RestartStrategy | None = None
    failures: FailureHistory = NO_FAILURES
    now_ms: int = 0
    jitter: float = 0.0
    active: AttemptFacts | None = None
    standby: AttemptFacts | None = None
    ended: tuple[AttemptFacts, ...] = ()
    rescale: RescaleFacts | None = None
    stop: OrderFacts | None = None
