"""The closed sets of values in the tables.

The control plane defines their meanings.
"""

from __future__ import annotations

from enum import StrEnum


class ArtifactKind(StrEnum):
    """The kind of an artifact, by its bytes."""

    PYTHON = "PYTHON"
    ZIP = "ZIP"
    JAR = "JAR"
    WHEEL = "WHEEL"


class JobStatus(StrEnum):
    """The status of a job, as its user sees it."""

    CREATED = "CREATED"
    SUBMITTING = "SUBMITTING"
    RUNNING = "RUNNING"
    SAVEPOINTING = "SAVEPOINTING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    RESCALING = "RESCALING"
    UPGRADING = "UPGRADING"
    RESTARTING = "RESTARTING"
    FAILED = "FAILED"
    FINISHED = "FINISHED"


class DesiredState(StrEnum):
    """The state that a job's user, or its input's end, wants."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"  # with a savepoint, if the job is running
    CANCELLED = "CANCELLED"  # without a savepoint


class AttemptStage(StrEnum):
    """The stage of an attempt, as decided by the control plane.

    A job has at most one ACTIVE and one STANDBY attempt.
    """

    STANDBY = "STANDBY"  # its driver warms up and waits
    ACTIVE = "ACTIVE"  # the attempt that may run the job
    ENDED = "ENDED"


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


class Role(StrEnum):
    """The rights of a token's holder."""

    VIEWER = "VIEWER"
    OPERATOR = "OPERATOR"
    ADMIN = "ADMIN"
