"""The closed sets of values, and limits, that all processes share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

STATE_CHANGES_MAX = 10_000
"""The most changes of keys' state in one request."""
REQUEST_BYTES_MAX = 1 << 20
"""The most bytes of a request's body, except for uploads and reports."""
KEY_GROUPS_MAX = 32_768
"""The most key groups of a job, as in Flink."""


class JobStatus(StrEnum):
    """The status of a job, as its user sees it."""

    CREATED = "CREATED"
    SUBMITTING = "SUBMITTING"
    RUNNING = "RUNNING"
    SLEEPING = "SLEEPING"  # without Spark, until its sources have records
    SAVEPOINTING = "SAVEPOINTING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    RESCALING = "RESCALING"
    UPGRADING = "UPGRADING"
    RESTARTING = "RESTARTING"
    FAILED = "FAILED"
    FINISHED = "FINISHED"


SETTLED = frozenset({JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED})
"""The job does not run, and will not until its user asks for it."""
UNSETTLED = frozenset(JobStatus) - SETTLED
_UP = frozenset({JobStatus.RUNNING, JobStatus.SLEEPING})


class DesiredState(StrEnum):
    """The state that a job's user, or its input's end, wants."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"  # with a savepoint, if the job is running
    CANCELLED = "CANCELLED"  # without a savepoint


class ConditionType(StrEnum):
    """What a condition is about."""

    RUNNING = "RUNNING"  # a driver runs the job
    HEALTHY = "HEALTHY"  # no fault of the job is known
    RESTORABLE = "RESTORABLE"  # a snapshot from which the job can start is known
    CATCHING_UP = "CATCHING_UP"  # the sources have more records left than the job leaves usually
    PROGRESSING = "PROGRESSING"  # an operation changes the job


class ConditionStatus(StrEnum):
    """Whether a condition is fulfilled."""

    TRUE = "TRUE"
    FALSE = "FALSE"
    UNKNOWN = "UNKNOWN"


class HealthLevel(StrEnum):
    """How well a job is."""

    OK = "OK"
    DEGRADED = "DEGRADED"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"  # no driver reports


class AttemptStage(StrEnum):
    """The stage of an attempt, as decided by the control plane.

    A job has at most one ACTIVE and one STANDBY attempt.
    """

    RESERVED = "RESERVED"  # the driver of the active attempt may open it, in a live rescale
    STANDBY = "STANDBY"  # its driver warms up and waits
    ACTIVE = "ACTIVE"  # the attempt that may run the job
    ENDED = "ENDED"


class DriverState(StrEnum):
    """The state of a driver, as it reports itself."""

    STANDBY = "STANDBY"  # Spark is up; waiting for an assignment
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    SLEEPING = "SLEEPING"  # Spark has ended; the driver watches the sources and commits nothing
    STOPPING = "STOPPING"
    WOKEN = "WOKEN"  # terminal: it has slept, and the next attempt has work
    STOPPED = "STOPPED"  # terminal: stopped by a command; commits have ended
    FINISHED = "FINISHED"  # terminal: drained, all input processed and committed
    FAILED = "FAILED"  # terminal: see Heartbeat.failure
    FENCED = "FENCED"  # terminal: another attempt has taken over


class DriverEffect(Enum):
    """What an operation does with the driver of a job."""

    STARTS = "starts"
    KEEPS = "keeps"  # the job runs on meanwhile
    REPLACES = "replaces"  # a new driver takes a running job over, phase by phase
    STOPS = "stops"  # with a savepoint
    KILLS = "kills"  # without a savepoint


@dataclass(frozen=True, slots=True)
class OperationTraits:
    """The facts about a kind of operation, declared once.

    Attributes:
        effect: What it does with the job's driver.
        summary: What it does: a sentence that begins with a verb.
        allowed: The statuses of a job that allow it.
        status: The status of a job while it is in progress; an operation that keeps the driver leaves the status.
        until: When it is complete, as help texts say it; only if its request has no arguments.
        details: More for a user to know; empty: the summary says all.
        refusal: What a refused user cannot do: "cannot ... while the job is"; empty: the name of the kind.
        event: The kind of the event of its request; empty: the kind's name with _REQUESTED.
        takes_arguments: Whether its request has more fields than the id.
        may_change_program: Whether the new driver may have other functions and state.
    """

    effect: DriverEffect
    summary: str
    allowed: frozenset[JobStatus]
    status: JobStatus
    until: str = ""
    details: str = ""
    refusal: str = ""
    event: str = ""
    takes_arguments: bool = False
    may_change_program: bool = False


class OperationKind(StrEnum):
    """The kinds of operations.

    Short routes, commands, refusals, events and the control plane's decisions follow from the traits of a kind.
    """

    traits: OperationTraits

    def __new__(cls, value: str, traits: OperationTraits) -> Self:
        """Creates a kind with its traits."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.traits = traits
        return member

    START = (
        "START",
        OperationTraits(
            DriverEffect.STARTS,
            "Starts a job.",
            allowed=SETTLED,
            status=JobStatus.SUBMITTING,
            event="JOB_STARTED",
            takes_arguments=True,
        ),
    )
    STOP = (
        "STOP",
        OperationTraits(
            DriverEffect.STOPS,
            "Stops a job with a savepoint.",
            allowed=_UP | {JobStatus.SUBMITTING, JobStatus.RESTARTING},
            status=JobStatus.SAVEPOINTING,
            until="the savepoint is published and the job is STOPPED",
            event="STOP_REQUESTED",
        ),
    )
    DRAIN = (
        "DRAIN",
        OperationTraits(
            DriverEffect.STOPS,
            "Ends a job after all present input.",
            allowed=_UP | {JobStatus.SUBMITTING, JobStatus.RESTARTING},
            status=JobStatus.SAVEPOINTING,
            until="the job is FINISHED",
            details="The job processes the present input, fires all event-time timers, takes a savepoint and ends.",
            event="STOP_REQUESTED",
        ),
    )
    CANCEL = (
        "CANCEL",
        OperationTraits(
            DriverEffect.KILLS,
            "Ends a job now, without a savepoint.",
            allowed=UNSETTLED,
            status=JobStatus.STOPPING,
            until="the job is STOPPED",
            details="The job can be started again from its latest checkpoint.",
            event="JOB_CANCELLED",
        ),
    )
    RESTART = (
        "RESTART",
        OperationTraits(
            DriverEffect.REPLACES,
            "Replaces a job's driver by a new driver of the same revision.",
            allowed=_UP | {JobStatus.RESTARTING},
            status=JobStatus.UPGRADING,
            until="the new driver runs the job",
            details=(
                "The new driver starts beside the running one, and continues from a savepoint; a job that keeps failing"
                " continues from its latest checkpoint."
            ),
        ),
    )
    CHECKPOINT = (
        "CHECKPOINT",
        OperationTraits(
            DriverEffect.KEEPS,
            "Takes a checkpoint of a running job now.",
            allowed=_UP,
            status=JobStatus.RUNNING,
            until="the checkpoint is complete",
            refusal="take a checkpoint",
        ),
    )
    SAVEPOINT = (
        "SAVEPOINT",
        OperationTraits(
            DriverEffect.KEEPS,
            "Takes a savepoint while the job continues.",
            allowed=_UP,
            status=JobStatus.RUNNING,
            until="the savepoint is complete",
            details="The savepoint has the operation's id.",
            refusal="take a savepoint",
        ),
    )
    RESCALE = (
        "RESCALE",
        OperationTraits(
            DriverEffect.REPLACES,
            "Changes a running job's parallelism.",
            allowed=_UP,
            status=JobStatus.RESCALING,
            takes_arguments=True,
        ),
    )
    UPGRADE = (
        "UPGRADE",
        OperationTraits(
            DriverEffect.REPLACES,
            "Changes a job's specification.",
            allowed=_UP,
            status=JobStatus.UPGRADING,
            takes_arguments=True,
            may_change_program=True,
        ),
    )
    ROLLBACK = (
        "ROLLBACK",
        OperationTraits(
            DriverEffect.REPLACES,
            "Takes a job back to an earlier revision.",
            allowed=_UP,
            status=JobStatus.UPGRADING,
            refusal="roll back",
            takes_arguments=True,
            may_change_program=True,
        ),
    )

    @property
    def is_change(self) -> bool:
        """Whether a new driver takes a running job over, phase by phase."""
        return self.traits.effect is DriverEffect.REPLACES

    @property
    def is_snapshot(self) -> bool:
        """Whether the job runs on meanwhile."""
        return self.traits.effect is DriverEffect.KEEPS

    @property
    def short_form(self) -> str:
        """The last part of its route, and its command."""
        return self.lower().replace("_", "-")

    @property
    def description(self) -> str:
        """What a kind without arguments does, and when it is complete."""
        more = f"{self.traits.details} It is COMPLETED when {self.traits.until}."
        return f"{self.traits.summary}\n\n{more.strip()}"

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return self.lower().replace("_", " ")

    @property
    def refusal(self) -> str:
        """What a refused user cannot do."""
        return self.traits.refusal or self.words

    @property
    def request_event(self) -> str:
        """The kind of the event of its request."""
        return self.traits.event or f"{self}_REQUESTED"


CHANGES = tuple(kind for kind in OperationKind if kind.is_change)
SNAPSHOTS = tuple(kind for kind in OperationKind if kind.is_snapshot)
STOPS = tuple(kind for kind in OperationKind if kind.traits.effect is DriverEffect.STOPS)
BESIDE = tuple(kind for kind in OperationKind if kind.traits.effect in {DriverEffect.KEEPS, DriverEffect.KILLS})
"""The kinds that may be in progress beside another operation."""
PLAIN = tuple(kind for kind in OperationKind if not kind.traits.takes_arguments)


class Approval(StrEnum):
    """Whether a change of a job waits until another user approves it."""

    NONE = "NONE"
    REQUIRED = "REQUIRED"


class OperationStatus(StrEnum):
    """The status of an operation."""

    PENDING_APPROVAL = "PENDING_APPROVAL"  # nothing has happened yet
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"  # at a user's request; the job is as before
    ROLLED_BACK = "ROLLED_BACK"  # the job runs its old revision
    FAILED = "FAILED"

    @property
    def has_ended(self) -> bool:
        """Whether the operation keeps its status for ever."""
        return self not in {OperationStatus.PENDING_APPROVAL, OperationStatus.IN_PROGRESS}


class ChangePhase(StrEnum):
    """The phases of a change, in order.

    A live rescale has PREPARE, SWITCH and VERIFY. If it becomes impossible before SWITCH, it goes on with REQUESTED.
    ROLL_BACK replaces the remaining phases.
    """

    PREPARE = "PREPARE"  # the running driver builds the new subtasks beside its batches
    SWITCH = "SWITCH"  # batches wait until the next attempt is open
    REQUESTED = "REQUESTED"  # the new driver is started beside the running driver
    SAVEPOINT = "SAVEPOINT"
    STOP = "STOP"
    RESTORE = "RESTORE"
    VERIFY = "VERIFY"
    ROLL_BACK = "ROLL_BACK"


class DowntimeStep(StrEnum):
    """The parts of a change's downtime, and the time after it."""

    SAVEPOINT = "SAVEPOINT"  # the old driver takes it, and processes nothing more
    STOP = "STOP"  # the old driver ends
    TRIAL = "TRIAL"  # of a change that is rolled back: its driver started, and did not hold
    SUBMIT = "SUBMIT"  # until the new driver's process is started; it mostly was before
    SESSION = "SESSION"  # until its Spark session is up, likewise
    RESTORE = "RESTORE"
    HANDOVER = "HANDOVER"  # of a live rescale: from the last commit until the next attempt is open
    FIRST_BATCH = "FIRST_BATCH"
    CAUGHT_UP = "CAUGHT_UP"  # after the downtime: until the sources have as little left as before


class RescaleMode(StrEnum):
    """How a rescale is carried out."""

    LIVE = "LIVE"  # by the running driver, between two batches; by a standby driver where that is impossible
    STANDBY = "STANDBY"  # by a new driver, which takes the job over


class KeyGroupDivision(StrEnum):
    """How key groups are divided among subtasks."""

    BY_COUNT = "BY_COUNT"  # an even number of key groups for each subtask
    BY_SIZE = "BY_SIZE"  # an even share of the state, as of the checkpoint that the attempt starts from


class RescalePhase(StrEnum):
    """The phases of a live rescale in the driver, in order."""

    PREPARE = "PREPARE"  # the new subtasks' stores are built beside the batches
    SWITCH = "SWITCH"  # batches wait; the next attempt is opened
    VERIFY = "VERIFY"  # the first batch at the new parallelism runs


class AutoscalerMode(StrEnum):
    """What the autoscaler does with a job."""

    DISABLED = "DISABLED"
    MONITORING = "MONITORING"  # it advises
    ACTIVE = "ACTIVE"  # it rescales the job


class ScalingVerdict(StrEnum):
    """What the autoscaler decides about a job, and why."""

    SCALE_UP = "SCALE_UP"
    SCALE_DOWN = "SCALE_DOWN"
    UNDO = "UNDO"  # the last move did not bring what it promised
    STEADY = "STEADY"  # the parallelism fits
    SLEEP = "SLEEP"  # the job needs no driver until records arrive
    # More subtasks are needed, but do not help:
    SINK_SLOW = "SINK_SLOW"
    STORE_SLOW = "STORE_SLOW"
    HOT_KEY_GROUP = "HOT_KEY_GROUP"
    FUNCTION_SLOW = "FUNCTION_SLOW"  # even with a subtask per key group
    SOURCE_LIMITED = "SOURCE_LIMITED"
    FIXED_COST = "FIXED_COST"
    HOST_OVERLOADED = "HOST_OVERLOADED"
    NOT_DELIVERED = "NOT_DELIVERED"  # the same move was undone recently
    # They would help, but are not allowed:
    NO_SLOTS = "NO_SLOTS"
    EXCLUDED_HOURS = "EXCLUDED_HOURS"
    BUDGET = "BUDGET"
    # The facts do not show how fast the job is:
    COOLING_DOWN = "COOLING_DOWN"
    WARMING_UP = "WARMING_UP"
    GARBAGE_COLLECTION = "GARBAGE_COLLECTION"
    OUTAGE = "OUTAGE"
    FAILING = "FAILING"
    NOT_RUNNING = "NOT_RUNNING"

    @property
    def is_move(self) -> bool:
        """Whether the job gets another parallelism."""
        return self in {ScalingVerdict.SCALE_UP, ScalingVerdict.SCALE_DOWN, ScalingVerdict.UNDO}

    @property
    def is_disturbance(self) -> bool:
        """Whether a disturbance hides how fast the job is."""
        return self in {
            ScalingVerdict.GARBAGE_COLLECTION,
            ScalingVerdict.OUTAGE,
            ScalingVerdict.FAILING,
            ScalingVerdict.NOT_RUNNING,
        }


class ScalingOutcome(StrEnum):
    """What has become of a move of the autoscaler."""

    PENDING = "PENDING"  # its effect is not measured yet
    DELIVERED = "DELIVERED"
    NOT_DELIVERED = "NOT_DELIVERED"
    FAILED = "FAILED"  # the rescale failed or was rolled back
    REPLACED = "REPLACED"  # another change came before the measurement


class UpgradeMode(StrEnum):
    """How a change takes state along."""

    SAVEPOINT = "SAVEPOINT"
    LAST_STATE = "LAST_STATE"  # no savepoint: the latest checkpoint and the commit log
    STATELESS = "STATELESS"


class CommandKind(StrEnum):
    """The kinds of commands that the control plane sends to a driver."""

    CHECKPOINT = "CHECKPOINT"  # take a checkpoint now
    SAVEPOINT = "SAVEPOINT"  # take a savepoint, and continue
    STOP_WITH_SAVEPOINT = "STOP_WITH_SAVEPOINT"  # take a savepoint after the last batch, commit nothing more, and end
    CANCEL = "CANCEL"  # end now, without a savepoint
    RESCALE = "RESCALE"  # open the next attempt at another parallelism; only for drivers that report slots


class CommandStatus(StrEnum):
    """The status of a command to a driver."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class DiagnosticKind(StrEnum):
    """What a diagnostic shows of a running job."""

    THREAD_DUMP = "THREAD_DUMP"  # the stacks of the driver, of JVMs and of Python workers
    PROFILE = "PROFILE"  # the stacks of Python workers over some seconds, counted
    EXECUTOR_LOGS = "EXECUTOR_LOGS"  # the end of what executors have written
    SAMPLE = "SAMPLE"  # some records that an operator reads and emits


class DiagnosticStatus(StrEnum):
    """The progress of a diagnostic."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class CheckpointStatus(StrEnum):
    """The status of a checkpoint or savepoint."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SUBSUMED = "SUBSUMED"
    DISCARDED = "DISCARDED"


class SnapshotOwner(StrEnum):
    """Who decides when a checkpoint or savepoint is deleted."""

    PLATFORM = "PLATFORM"
    USER = "USER"


class RestoreMode(StrEnum):
    """The history that an attempt continues.

    A driver gets the names in lower case.
    """

    CONTINUE = "CONTINUE"  # the job's own
    REWIND = "REWIND"  # exactly one snapshot, of this or another job
    STATELESS = "STATELESS"  # an empty history


class ClaimMode(StrEnum):
    """Whether a job takes over the restored files, or copies them."""

    NO_CLAIM = "NO_CLAIM"
    CLAIM = "CLAIM"


class ArtifactKind(StrEnum):
    """The kind of an artifact, by its bytes."""

    PYTHON = "PYTHON"
    ZIP = "ZIP"
    JAR = "JAR"
    WHEEL = "WHEEL"


class AnnotationKind(StrEnum):
    """The event that an annotation on a chart stands for."""

    START = "START"
    STOP = "STOP"  # stopped, cancelled or finished
    RESTART = "RESTART"
    FAILURE = "FAILURE"  # the job was given up
    RESCALE = "RESCALE"
    UPGRADE = "UPGRADE"
    ROLLBACK = "ROLLBACK"  # a change that did not work out, or an upgrade that was taken back
    CHECKPOINT_FAILED = "CHECKPOINT_FAILED"


class Role(StrEnum):
    """The rights of a token's holder."""

    VIEWER = "VIEWER"
    OPERATOR = "OPERATOR"
    ADMIN = "ADMIN"


class NotificationKind(StrEnum):
    """The kinds of notifications that a subscription chooses from."""

    JOB_FAILED = "JOB_FAILED"
    RESTARTING_IN_A_LOOP = "RESTARTING_IN_A_LOOP"
    CHECKPOINTS_LATE = "CHECKPOINTS_LATE"
    RESTORABLE_SOON_OVER = "RESTORABLE_SOON_OVER"
    OPERATION_COMPLETED = "OPERATION_COMPLETED"
    OPERATION_ROLLED_BACK = "OPERATION_ROLLED_BACK"
    OPERATION_FAILED = "OPERATION_FAILED"
    RECORDS_LOST = "RECORDS_LOST"
    STORE_AWAY = "STORE_AWAY"
    DATABASE_AWAY = "DATABASE_AWAY"
    NO_LEADER = "NO_LEADER"


PLATFORM_NOTIFICATIONS = frozenset({NotificationKind.DATABASE_AWAY, NotificationKind.NO_LEADER})
"""The kinds that are about no job."""


class Channel(StrEnum):
    """The ways in which a subscription's notifications are sent."""

    WEBHOOK = "WEBHOOK"  # signed CloudEvents
    SLACK = "SLACK"
    TEAMS = "TEAMS"
    PAGERDUTY = "PAGERDUTY"
    MAIL = "MAIL"


HTTP_CHANNELS = frozenset(Channel) - {Channel.MAIL}


class DeliveryStatus(StrEnum):
    """The status of a delivery."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"  # every attempt has failed: it is not sent again


class Fate(StrEnum):
    """The fate of a state when another program opens it."""

    KEPT = "KEPT"
    NEW = "NEW"  # begins empty
    MIGRATED = "MIGRATED"  # rules read the old values, which are written in the new form when they next change
    NOT_DECLARED = "NOT_DECLARED"  # stays unread and unchanged, unless the program declares it later
    DROPPED = "DROPPED"  # with its operator
    INCOMPATIBLE = "INCOMPATIBLE"  # the new program cannot open it
