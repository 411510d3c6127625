"""Operations: the long actions on a job, and their commands to drivers."""

from __future__ import annotations

from enum import StrEnum


class OperationKind(StrEnum):
    """The kinds of operations."""

    START = "START"
    STOP = "STOP"  # with a savepoint
    DRAIN = "DRAIN"  # a stop after all present input
    CANCEL = "CANCEL"  # without a savepoint
    RESTART = "RESTART"  # a new driver for the same revision
    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    RESCALE = "RESCALE"  # another parallelism, and nothing else
    UPGRADE = "UPGRADE"
    ROLLBACK = "ROLLBACK"  # to an earlier revision, at the user's request

    @property
    def is_change(self) -> bool:
        """Whether a new driver takes a running job over, phase by phase."""
        return self in CHANGES

    @property
    def may_change_program(self) -> bool:
        """Whether the new driver may have other functions and state."""
        return self in {OperationKind.UPGRADE, OperationKind.ROLLBACK}

    @property
    def is_snapshot(self) -> bool:
        """Whether the job runs on meanwhile."""
        return self in SNAPSHOTS


CHANGES = frozenset({OperationKind.RESTART, OperationKind.RESCALE, OperationKind.UPGRADE, OperationKind.ROLLBACK})
SNAPSHOTS = frozenset({OperationKind.CHECKPOINT, OperationKind.SAVEPOINT})
STOPS = frozenset({OperationKind.STOP, OperationKind.DRAIN})


class OperationStatus(StrEnum):
    """The status of an operation."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"  # at a user's request; the job is as before
    ROLLED_BACK = "ROLLED_BACK"  # the job runs its old revision
    FAILED = "FAILED"


class ChangePhase(StrEnum):
    """The phases of a change, in order.

    ROLL_BACK replaces the remaining phases.
    """

    REQUESTED = "REQUESTED"  # the new driver is started beside the running driver
    SAVEPOINT = "SAVEPOINT"
    STOP = "STOP"
    RESTORE = "RESTORE"
    VERIFY = "VERIFY"
    ROLL_BACK = "ROLL_BACK"


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


class CommandStatus(StrEnum):
    """The status of a command to a driver."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
