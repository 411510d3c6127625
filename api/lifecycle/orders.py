"""Orders to drivers: giving them and taking down what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.clock import now_ms
from db.models import Command
from db.repositories import events
from db.statuses import CommandKind, CommandStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session


def order_stop(session: Session, job_id: str, attempt: int, operation_id: str, savepoint_id: str) -> Command:
    """Orders an attempt to take a savepoint and end, once."""
    command = Command(
        id=operation_id,
        job_id=job_id,
        attempt=attempt,
        kind=CommandKind.STOP_WITH_SAVEPOINT,
        savepoint_id=savepoint_id,
        drain=False,
        status=CommandStatus.IN_PROGRESS,
        created_at_ms=now_ms(),
    )
    session.add(command)
    return command


def settle_command(
    session: Session,
    command: Command,
    *,
    status: CommandStatus,
    location: str | None = None,
    checkpoint_id: int | None = None,
    failure: Mapping[str, Any] | None = None,
) -> None:
    """Takes down the outcome of an order; the first one stays."""
    if command.status is not CommandStatus.IN_PROGRESS:
        return
    command.status, command.ended_at_ms = status, now_ms()
    command.location, command.checkpoint_id = location, checkpoint_id
    command.failure = dict(failure) if failure is not None else None
    outcome = "completed" if status is CommandStatus.COMPLETED else "failed"
    events.record(
        session,
        job_id=command.job_id,
        at_ms=command.ended_at_ms,
        kind=f"{command.kind}_{status}",
        actor=f"attempt {command.attempt}",
        message=f"{command.kind.replace('_', ' ').lower()} {outcome}",
        operation_id=command.id,
        location=location,
        failure_code=failure.get("code") if failure else None,
    )
