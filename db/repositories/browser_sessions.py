"""Queries on the sessions of browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, or_, select

from ..models import BrowserSession, Token

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session


def find(session: Session, sha256: str) -> tuple[BrowserSession, Token | None] | None:
    """Returns a cookie's session, with its token; even if expired."""
    row = session.execute(
        select(BrowserSession, Token)
        .outerjoin(Token, Token.sha256 == BrowserSession.token_sha256)
        .where(BrowserSession.sha256 == sha256)
    ).first()
    return None if row is None else (row[0], row[1])


def valid(session: Session, sha256s: Collection[str], *, at_ms: int) -> set[str]:
    """Returns the hashes of sessions that are valid at a time.

    The tokens that the sessions began with must be valid, too.
    """
    # Without a token both columns are NULL.
    is_valid = (Token.revoked_at_ms.is_(None), or_(Token.expires_at_ms.is_(None), Token.expires_at_ms > at_ms))
    return set(
        session.scalars(
            select(BrowserSession.sha256)
            .outerjoin(Token, Token.sha256 == BrowserSession.token_sha256)
            .where(BrowserSession.sha256.in_(sha256s), BrowserSession.expires_at_ms > at_ms, *is_valid)
        )
    )


def remove(session: Session, sha256: str) -> None:
    """Ends a session."""
    session.execute(delete(BrowserSession).where(BrowserSession.sha256 == sha256))


def remove_expired(session: Session, *, at_ms: int) -> None:
    """Deletes the sessions that had expired by a time."""
    session.execute(delete(BrowserSession).where(BrowserSession.expires_at_ms <= at_ms))
