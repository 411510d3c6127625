"""The table of operations."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, false, text
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import (
    ChangePhase,
    CommandKind,
    CommandStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
    SnapshotOwner,
    UpgradeMode,
)

from ..base import Base, closed_set

SAVEPOINT_POLICY = "savepoint policy"
"""Who requests the savepoints of a job's policy. The name of a token has no space."""
AUTOSCALER = "autoscaler"
"""Who requests the rescales of a job's autoscaler."""


class Operation(Base):
    """A long action on a job, which survives the control plane.

    A job has at most one operation in progress that moves it, beside checkpoints, savepoints and a cancel, and at most
    one change that waits for an approval. The command
    that an operation sends to a driver is in the operation's row, as an operation has at most one. `old_attempt` has
    got the command last: a command to stop moves on to the attempt that replaces a dead one; other commands fail with
    their attempt. A savepoint has the id of the operation that takes it.
    """

    __tablename__ = "operations"
    __table_args__ = (
        Index("ix_operations_requested_at_ms", "job_id", "requested_at_ms", "id"),
        Index(
            "ix_operations_to_revision",
            "job_id",
            "to_revision",
            "requested_at_ms",
            "id",
            postgresql_where=text("to_revision IS NOT NULL"),
        ),
        Index(
            "ix_operations_commands", "job_id", "old_attempt", postgresql_where=text("command_status = 'IN_PROGRESS'")
        ),
        Index(
            "ix_operations_resumed",
            "job_id",
            "requested_at_ms",
            postgresql_where=text("resumed_at_ms IS NOT NULL AND stopped_at_ms IS NOT NULL"),
        ),
        Index("ix_operations_in_progress", "job_id", postgresql_where=text("status = 'IN_PROGRESS'")),
        Index(
            "uq_operations_one_running",
            "job_id",
            unique=True,
            postgresql_where=text("status = 'IN_PROGRESS' AND kind NOT IN ('CANCEL', 'CHECKPOINT', 'SAVEPOINT')"),
        ),
        Index("uq_operations_one_pending", "job_id", unique=True, postgresql_where=text("status = 'PENDING_APPROVAL'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    kind: Mapped[OperationKind] = mapped_column(closed_set(OperationKind, "kind"))
    status: Mapped[OperationStatus] = mapped_column(closed_set(OperationStatus, "status"))
    requested_at_ms: Mapped[int]
    requested_by: Mapped[str | None]
    request_sha256: Mapped[str | None]  # of its arguments: the same id again must be the same request
    approved_by: Mapped[str | None]
    approved_at_ms: Mapped[int | None]
    ended_at_ms: Mapped[int | None]
    failure: Mapped[dict[str, Any] | None]

    command_status: Mapped[CommandStatus | None] = mapped_column(closed_set(CommandStatus, "command_status"))
    location: Mapped[str | None]  # of the checkpoint or savepoint that it took, or continued from
    checkpoint_id: Mapped[int | None]

    phase: Mapped[ChangePhase | None] = mapped_column(closed_set(ChangePhase, "phase"))
    phases: Mapped[list[dict[str, Any]]] = mapped_column(default=list, server_default="[]")
    from_revision: Mapped[int | None]
    to_revision: Mapped[int | None]
    from_parallelism: Mapped[int | None]
    to_parallelism: Mapped[int | None]
    upgrade_mode: Mapped[UpgradeMode | None] = mapped_column(closed_set(UpgradeMode, "upgrade_mode"))
    last_state_age_ms_max: Mapped[int | None]  # an older checkpoint refuses the change; None: any age
    allow_non_restored_state: Mapped[bool] = mapped_column(default=False, server_default=false())
    rewind_to: Mapped[str | None]  # the earlier savepoint from which the new revision starts
    rescale_mode: Mapped[RescaleMode | None] = mapped_column(closed_set(RescaleMode, "rescale_mode"))
    live: Mapped[dict[str, Any] | None]  # of a live rescale: its progress in the driver
    not_live: Mapped[dict[str, Any] | None]  # why a new driver carries out a rescale
    old_attempt: Mapped[int | None]
    new_attempt: Mapped[int | None]
    stopped_at_ms: Mapped[int | None]
    resumed_at_ms: Mapped[int | None]
    cancel_requested_at_ms: Mapped[int | None]
    caught_up_at_ms: Mapped[int | None]
    metrics_before: Mapped[dict[str, Any] | None]  # of the old attempt, when the change was requested
    metrics_after: Mapped[dict[str, Any] | None]  # of the new attempt, some time after it caught up
    times: Mapped[dict[str, Any] | None]  # of the attempt that continued: the times of its steps

    @property
    def command_kind(self) -> CommandKind:
        """The kind of its command to a driver."""
        if self.rescale_mode is RescaleMode.LIVE:
            return CommandKind.RESCALE
        return CommandKind(self.kind) if self.kind.is_snapshot else CommandKind.STOP_WITH_SAVEPOINT

    @property
    def command_id(self) -> str:
        """The id of its command, as earlier drivers know it.

        A rescale that is not live in the end has sent two commands.
        """
        is_live = self.rescale_mode is RescaleMode.LIVE
        return f"{self.kind.lower()}:{self.id}" if self.kind.is_change and not is_live else self.id

    @property
    def savepoint_id(self) -> str | None:
        """The id of the savepoint that its command takes."""
        takes_none = self.kind is OperationKind.CHECKPOINT or self.rescale_mode is RescaleMode.LIVE
        return None if takes_none else self.id

    @property
    def savepoint_owner(self) -> SnapshotOwner:
        """The first owner of its savepoint.

        The savepoints of changes and of the policy belong to the platform.
        """
        is_of_platform = self.kind.is_change or self.requested_by == SAVEPOINT_POLICY
        return SnapshotOwner.PLATFORM if is_of_platform else SnapshotOwner.USER
