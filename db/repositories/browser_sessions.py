"""Queries on the sessions of browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from keyscale.db.models import BrowserSession, Token

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def find(session: Session, sha256: str) -> tuple[BrowserSession, Token | None] | None:
    """Returns the session whose cookie has this hash, and the token that it began with; expired ones too."""
    row = session.execute(
        select(BrowserSession, Token)
        .outerjoin(Token, Token.sha256 == BrowserSession.token_sha256)
        .where(BrowserSession.sha256 == sha256)
    ).first()
    return None if row is None else (row[0], row[1])


def remove(session: Session, sha256: str) -> None:
    """Ends a session."""
    session.execute(delete(BrowserSession).where(BrowserSession.sha256 == sha256))


def remove_expired(session: Session, *, at_ms: int) -> None:
    """Deletes the sessions that had expired by a time."""
    session.execute(delete(BrowserSession).where(BrowserSession.expires_at_ms <= at_ms))
