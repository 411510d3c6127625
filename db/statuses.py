"""The closed sets of values that the tables hold. What they mean is the control plane's business."""

from __future__ import annotations

from enum import StrEnum


class ArtifactKind(StrEnum):
    """What an artifact's bytes are."""

    PYTHON = "PYTHON"
    ZIP = "ZIP"
    JAR = "JAR"


class JobStatus(StrEnum):
    """Where a job is, as its user sees it."""

    CREATED = "CREATED"
    SUBMITTING = "SUBMITTING"
    RUNNING = "RUNNING"
    SAVEPOINTING = "SAVEPOINTING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    RESCALING = "RESCALING"
    RESTARTING = "RESTARTING"
    FAILED = "FAILED"
    FINISHED = "FINISHED"


class DesiredState(StrEnum):
    """What a job's user, or the end of its input, wants of it."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"  # with a savepoint, if the job is running
    CANCELLED = "CANCELLED"  # without one


class AttemptStage(StrEnum):
    """What the control plane has decided about an attempt. At most one attempt of a job is ACTIVE, one STANDBY."""

    STANDBY = "STANDBY"  # its driver warms up and waits
    ACTIVE = "ACTIVE"  # the one that may run the job
    ENDED = "ENDED"


class CheckpointStatus(StrEnum):
    """Status of a checkpoint or savepoint."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SUBSUMED = "SUBSUMED"
    DISCARDED = "DISCARDED"


class CommandStatus(StrEnum):
    """Status of an order to a driver, and of the operation that it stands for."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class CommandKind(StrEnum):
    """What a driver can be told."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    STOP_WITH_SAVEPOINT = "STOP_WITH_SAVEPOINT"
    CANCEL = "CANCEL"


class RescaleStatus(StrEnum):
    """How a rescale has ended, if it has."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    ROLLED_BACK = "ROLLED_BACK"  # the job runs at its old parallelism
    FAILED = "FAILED"  # given up with the job


class RescalePhase(StrEnum):
    """The steps of a rescale, in their order. ROLL_BACK takes the place of what was left."""

    REQUESTED = "REQUESTED"  # the new driver is started beside the running one
    SAVEPOINT = "SAVEPOINT"
    STOP = "STOP"
    RESTORE = "RESTORE"
    VERIFY = "VERIFY"
    ROLL_BACK = "ROLL_BACK"


class Role(StrEnum):
    """What the holder of a token may do."""

    VIEWER = "VIEWER"
    OPERATOR = "OPERATOR"
    ADMIN = "ADMIN"
