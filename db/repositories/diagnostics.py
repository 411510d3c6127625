"""Queries on diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select, text, update

from ..models import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from keyscale.vocabulary import DiagnosticKind

KEPT = 20
"""The number of diagnostics per job; adding a diagnostic removes older ones."""

_OLD = """
WITH gone AS (
    DELETE FROM diagnostics WHERE (job_id, id) IN (
        SELECT job_id, id FROM diagnostics WHERE requested_at_ms < :before_ms ORDER BY requested_at_ms LIMIT :some
    )
    RETURNING 1
)
SELECT count(*) FROM gone
"""


def add(
    session: Session,
    diagnostic_id: str,
    *,
    job_id: str,
    attempt: int,
    kind: DiagnosticKind,
    request: dict[str, Any],
    at_ms: int,
    requested_by: str,
    until_ms: int,
) -> Diagnostic:
    """Adds a diagnostic, and removes the job's oldest ones."""
    added = Diagnostic(
        id=diagnostic_id,
        job_id=job_id,
        attempt=attempt,
        kind=kind,
        request=request,
        requested_at_ms=at_ms,
        requested_by=requested_by,
        until_ms=until_ms,
    )
    session.add(added)
    session.flush()
    newest = (Diagnostic.requested_at_ms.desc(), Diagnostic.id.desc())
    of_job = select(Diagnostic.id).where(Diagnostic.job_id == job_id).order_by(*newest)
    session.execute(
        delete(Diagnostic).where(Diagnostic.job_id == job_id, Diagnostic.id.in_(of_job.offset(KEPT))),
        execution_options={"synchronize_session": False},
    )
    return added


def find(session: Session, job_id: str, diagnostic_id: str) -> Diagnostic | None:
    """Returns a diagnostic of a job."""
    return session.get(Diagnostic, (job_id, diagnostic_id))


def list_of(session: Session, job_id: str) -> Sequence[Diagnostic]:
    """Returns a job's diagnostics without their parts, the newest first."""
    statement = select(Diagnostic).where(Diagnostic.job_id == job_id)
    return session.scalars(statement.order_by(Diagnostic.requested_at_ms.desc(), Diagnostic.id.desc())).all()


def pending(session: Session, job_id: str, attempt: int, at_ms: int) -> Sequence[Diagnostic]:
    """Returns the diagnostics that wait for a driver's answer, the oldest first."""
    statement = select(Diagnostic).where(
        Diagnostic.job_id == job_id,
        Diagnostic.attempt == attempt,
        Diagnostic.ended_at_ms.is_(None),
        Diagnostic.until_ms > at_ms,
    )
    return session.scalars(statement.order_by(Diagnostic.requested_at_ms, Diagnostic.id)).all()


def settle(
    session: Session,
    diagnostic_id: str,
    *,
    job_id: str,
    attempt: int,
    parts: list[dict[str, Any]],
    failure: dict[str, Any] | None,
    at_ms: int,
) -> None:
    """Stores a driver's answer, unless the diagnostic has one already."""
    session.execute(
        update(Diagnostic)
        .where(
            Diagnostic.id == diagnostic_id,
            Diagnostic.job_id == job_id,
            Diagnostic.attempt == attempt,
            Diagnostic.ended_at_ms.is_(None),
        )
        .values(parts=parts, failure=failure, ended_at_ms=func.greatest(at_ms, Diagnostic.requested_at_ms))
    )


def remove_old(session: Session, *, before_ms: int, some: int) -> int:
    """Removes diagnostics that were requested before a time."""
    return session.scalar(text(_OLD), {"before_ms": before_ms, "some": some}) or 0
