"""The facts from which a job's next step is decided.

They are plain values, read beforehand, so that the decision is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.messages import FailureHistory
from keyscale.vocabulary import DriverState, OperationKind, UpgradeMode

from ..launching.processes import ProcessState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.jobs.protocol.specification import RestartStrategy
    from keyscale.vocabulary import ChangePhase, CommandStatus, DesiredState, JobStatus

    from .repeated_faults import EarlierRun

NO_FAILURES = FailureHistory()


@dataclass(frozen=True, slots=True)
class Turn:
    """An attempt's turn to start.

    Attributes:
        place: The attempt's place in the line; 0: the attempt may be launched.
        is_announced: Whether an event tells that the attempt waits.
    """

    place: int = 0
    is_announced: bool = False


NOW = Turn()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in milliseconds of a monotonic clock.

    Attributes:
        silence_ms: A driver with a live process is killed after this time without a heartbeat.
        suspended_ms: The same time for a driver that is stopped by a signal.
        attach_ms: From the launch until the driver must ask for work. Time without a processor does not count.
        turn_ms: From the request for work until a driver that does not run yet leaves its turn to start to another one.
        warm_ms: From the request for work until the change goes on with a driver that is not ready, if no earlier
            change of the job tells how long its drivers take.
        warm_ms_min: The shortest such time that earlier changes lead to.
        warm_ms_max: The longest such time that earlier changes lead to.
        request_ms: From the request for a change until the new driver must ask for work. The time in which the new
            driver waits for its turn to start does not count, here and in `restore_ms`.
        prepare_ms: A driver may prepare a live rescale for this long; it measures the time itself.
        answer_ms: A driver that does not answer this long after a checkpoint and `prepare_ms` is replaced.
        savepoint_ms: The savepoint of a change is given up this long after the job's own limit for checkpoints.
        stop_ms: From the savepoint until a driver that does not end is ended.
        store_ms: From the first question until a store is given up that does not say whether a savepoint exists.
        exit_ms: From the end of an attempt until its processes are killed.
        restore_ms: The new drivers of a change must have restored the state after this time.
        verify_ms: After this time a restored job must have committed a first batch, or have reported that it has no
            input. A job with long batches has more time: `BATCHES_TO_VERIFY` times its last batch.
        backoff_ms_max: Longest pause between two starts.
        healthy_ms: An attempt that ran this long has made progress, even without input.
    """

    silence_ms: int = 60_000
    suspended_ms: int = 20_000
    attach_ms: int = 180_000
    turn_ms: int = 30_000
    warm_ms: int = 120_000
    warm_ms_min: int = 30_000
    warm_ms_max: int = 300_000
    request_ms: int = 300_000
    prepare_ms: int = 120_000
    answer_ms: int = 60_000
    savepoint_ms: int = 60_000
    stop_ms: int = 20_000
    store_ms: int = 60_000
    exit_ms: int = 10_000
    restore_ms: int = 600_000
    verify_ms: int = 120_000
    backoff_ms_max: int = 60_000
    healthy_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """An attempt.

    Attributes:
        silent_ms: Since the last sign of life, as observed by this reconciler.
        state_age_ms: Since its stage or launch last changed, as observed by this reconciler.
        starting_ms: Since its launch, as observed by this reconciler, without the time that it waited for a processor.
        attached_age_ms: Since the driver first asked for work, as observed by this reconciler.
        has_run_input: It has committed a batch with input, and not of timers alone.
        waits_for_input: It has looked for input and found none.
        run_failure: Of its last run, if the driver restarts the job itself after failures.
        has_progressed: It has committed a batch, or ran long enough to count as healthy.
        turn: Its turn to start, if it is not launched.
        pids: Its processes whose end must be noticed; None if unknown.
    """

    number: int
    process: ProcessState
    driver_state: DriverState | None = None
    is_attached: bool = False
    silent_ms: int = 0
    state_age_ms: int = 0
    starting_ms: int = 0
    attached_age_ms: int = 0
    restored_at_ms: int | None = None
    first_commit_at_ms: int | None = None
    has_run_input: bool = False
    waits_for_input: bool = False
    run_failure: Mapping[str, Any] | None = None
    has_progressed: bool = False
    failure: Mapping[str, Any] | None = None
    exit_code: int | None = None
    turn: Turn = NOW

    @property
    def has_begun(self) -> bool:
        """Whether it runs the job, and has processed input or found none."""
        is_up = self.driver_state in {DriverState.RUNNING, DriverState.SLEEPING} and self.restored_at_ms is not None
        return is_up and (self.has_run_input or self.waits_for_input)

    @property
    def has_slept(self) -> bool:
        """Whether it sleeps, or has just woken.

        Its last checkpoint has all state.
        """
        return self.driver_state in {DriverState.SLEEPING, DriverState.WOKEN}

    @property
    def waits_for_turn(self) -> bool:
        """Whether its launch waits until other drivers have started."""
        return self.process is ProcessState.UNLAUNCHED and self.turn.place > 0

    pids: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """A command to stop with a savepoint, for stops and changes.

    Attributes:
        attempt: The attempt that has the command.
        new_attempt: The attempt of the new revision.
        tries: How many drivers a stop has begun since its request, each after the end of another driver.
    """

    operation_id: str
    status: CommandStatus
    attempt: int
    tries: int = 0
    drain: bool = False
    status_age_ms: int = 0
    failure: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """The change in progress.

    Attributes:
        command: The command that stops the old attempt with a savepoint.
        tries: How many drivers of the new revision have been given the state.
        phase_age_ms: Since the phase began, as observed by this reconciler. While the new driver waits for its turn to
            start it is 0, and then it counts from the launch.
        checkpoint_timeout_ms: The job's own limit for checkpoints and savepoints.
        batch_duration_ms: Of the old attempt's last batch.
        is_cancelled: A user has asked to cancel it.
        earlier_warm_ms: How long the drivers of the job's last changes had to become ready.
    """

    phase: ChangePhase
    to_revision: int
    kind: OperationKind = OperationKind.RESCALE
    mode: UpgradeMode = UpgradeMode.SAVEPOINT
    command: CommandFacts | None = None
    new_attempt: int | None = None
    tries: int = 0
    phase_age_ms: int = 0
    checkpoint_timeout_ms: int = 600_000
    batch_duration_ms: float = 0.0
    is_cancelled: bool = False
    earlier_warm_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job and everything that its next step depends on.

    Attributes:
        revision: The job's current revision.
        start_in_ms: Until the next start may be tried.
        restart: The job's own restart strategy, or else its script's; None: the control plane's default.
        failures: Failures since the user started the job, as far as a restart strategy has counted them.
        now_ms: Milliseconds since the epoch.
        jitter: A random number between -1 and 1, drawn for this decision.
        reserved: The attempts that the driver may open: the next attempt of a live rescale, and the return.
        earlier: The runs before the active attempt, newest first, since the user started the job; read only if the
            active attempt has failed.
        has_failure: Users see a failure without a later commit.
        ended: Ended attempts that may still have processes.
        start_fails: The last try to create or launch an attempt has failed in the control plane.
        stop: The command of the user's stop.
        is_starting: A start is in progress.
    """

    status: JobStatus
    desired: DesiredState
    revision: int
    consecutive_failures: int = 0
    restarts: int = 0
    start_in_ms: int = 0
    restart: RestartStrategy | None = None
    failures: FailureHistory = NO_FAILURES
    now_ms: int = 0
    jitter: float = 0.0
    active: AttemptFacts | None = None
    standby: AttemptFacts | None = None
    reserved: tuple[AttemptFacts, ...] = ()
    earlier: tuple[EarlierRun, ...] = ()
    has_failure: bool = False
    ended: tuple[AttemptFacts, ...] = ()
    start_fails: bool = False
    change: ChangeFacts | None = None
    stop: CommandFacts | None = None
    is_starting: bool = False

    @property
    def waits_for_turn(self) -> bool:
        """Whether a driver of the job waits for its turn to start."""
        return any(attempt is not None and attempt.waits_for_turn for attempt in (self.active, self.standby))
