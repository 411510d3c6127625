"""The table of commands."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base, closed_set
from ..statuses import CommandKind, CommandStatus, SnapshotOwner


class Command(Base):
    """A command to a job's driver, kept until its result is known.

    Its id is the id of the user's operation. `attempt` is the attempt that got it last: a command to stop moves on to
    the attempt that replaces a dead one; other commands fail with their attempt.
    """

    __tablename__ = "commands"
    __table_args__ = (
        Index("ix_commands_created_at_ms", "job_id", "created_at_ms", "id"),
        Index("ix_commands_savepoint_id", "job_id", "savepoint_id", postgresql_where=text("savepoint_id IS NOT NULL")),
        Index("ix_commands_in_progress", "job_id", "attempt", postgresql_where=text("status = 'IN_PROGRESS'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    kind: Mapped[CommandKind] = mapped_column(closed_set(CommandKind, "kind"))
    savepoint_id: Mapped[str | None]
    drain: Mapped[bool] = mapped_column(default=False)
    status: Mapped[CommandStatus] = mapped_column(closed_set(CommandStatus, "status"))
    location: Mapped[str | None]
    checkpoint_id: Mapped[int | None]
    failure: Mapped[dict[str, Any] | None]
    created_at_ms: Mapped[int]
    ended_at_ms: Mapped[int | None]

    @property
    def savepoint_owner(self) -> SnapshotOwner:
        """The first owner of its savepoint.

        It is the platform if the savepoint is taken for a change. A user's savepoint has the command's id, the
        savepoint of a change has the change's id.
        """
        return SnapshotOwner.USER if self.savepoint_id == self.id else SnapshotOwner.PLATFORM
