"""Queries on commands to drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, not_, select, text

from ..models import Attempt, Checkpoint, Command
from ..statuses import CommandKind, CommandStatus
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session


def reserve_id(session: Session, operation_id: str) -> None:
    """Reserves an operation's id until this transaction ends.

    Operations of all kinds share the ids.
    """
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:id, 0))"), {"id": operation_id})


def find(session: Session, command_id: str, *, lock: bool = False) -> Command | None:
    """Returns the current state of a command with this id.

    `lock` keeps other transactions from changing it.
    """
    statement = select(Command).where(Command.id == command_id).execution_options(populate_existing=True)
    return session.scalars(statement.with_for_update() if lock else statement).first()


def find_all(session: Session, command_ids: Collection[str]) -> Sequence[Command]:
    """Returns the existing commands among some ids."""
    return session.scalars(select(Command).where(Command.id.in_(command_ids))).all()


def pending(session: Session, job_id: str, attempt: int) -> Sequence[Command]:
    """Returns an attempt's commands without a result, the oldest first."""
    return session.scalars(
        select(Command)
        .where(Command.job_id == job_id, Command.attempt == attempt, Command.status == CommandStatus.IN_PROGRESS)
        .order_by(Command.created_at_ms, Command.id)
    ).all()


class Listening(NamedTuple):
    """A driver that waits until it is wanted.

    Attributes:
        job_id: Its job.
        attempt: The number of its attempt.
        revision: The revision that it takes its settings from.
    """

    job_id: str
    attempt: int
    revision: int


_WANTED = text(
    """
SELECT w.job_id, w.attempt, w.revision
FROM unnest(CAST(:job_ids AS text[]), CAST(:attempts AS bigint[]), CAST(:revisions AS bigint[]))
    AS w(job_id, attempt, revision)
LEFT JOIN attempts a ON a.job_id = w.job_id AND a.number = w.attempt
WHERE a.stage IS DISTINCT FROM 'ACTIVE' OR a.revision <> w.revision OR EXISTS (
    SELECT FROM commands c WHERE c.job_id = w.job_id AND c.attempt = w.attempt AND c.status = 'IN_PROGRESS'
)
"""
)


def wanted(session: Session, drivers: Collection[Listening]) -> set[Listening]:
    """Returns the drivers that must report.

    A command waits for them, their settings have changed, or another attempt runs the job.
    """
    job_ids, numbers, known = zip(*drivers, strict=True)
    given = {"job_ids": list(job_ids), "attempts": list(numbers), "revisions": list(known)}
    return {Listening(*row) for row in session.connection().execute(_WANTED, given)}


def count_pending(session: Session, job_id: str) -> int:
    """Counts a job's commands without a result."""
    statement = select(func.count()).where(Command.job_id == job_id, Command.status == CommandStatus.IN_PROGRESS)
    return session.scalar(statement) or 0


def savepoints(session: Session, job_id: str, page: PageRequest) -> Page[Command]:
    """Returns the commands that take a savepoint, the newest first."""
    kinds = (CommandKind.SAVEPOINT, CommandKind.STOP_WITH_SAVEPOINT)
    statement = select(Command).where(Command.job_id == job_id, Command.kind.in_(kinds))
    return read_page(session, statement, (Command.created_at_ms, Command.id), page)


def find_savepoint(session: Session, job_id: str, savepoint_id: str) -> Command | None:
    """Returns the command that takes, or took, this savepoint of a job."""
    return session.scalars(
        select(Command).where(Command.job_id == job_id, Command.savepoint_id == savepoint_id)
    ).first()


def last_savepoint_of(session: Session, job_id: str, revision: int) -> str | None:
    """Returns the savepoint with which a job's revision last stopped.

    None if it stopped without a savepoint.
    """
    last = (
        select(Attempt.number)
        .where(Attempt.job_id == job_id, Attempt.revision == revision, Attempt.assigned_at_ms.is_not(None))
        .order_by(Attempt.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    deleted = select(Checkpoint.checkpoint_id).where(
        Checkpoint.job_id == job_id,
        Checkpoint.external_path == Command.location,
        Checkpoint.discard_requested_at_ms.is_not(None),
    )
    return session.scalars(
        select(Command.location).where(
            Command.job_id == job_id,
            Command.kind == CommandKind.STOP_WITH_SAVEPOINT,
            Command.status == CommandStatus.COMPLETED,
            Command.attempt == last,
            not_(deleted.exists()),
        )
    ).first()
