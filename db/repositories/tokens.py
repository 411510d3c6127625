"""Queries on user tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from keyscale.db.models import Token

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.statuses import Role


def find(session: Session, sha256: str) -> Token | None:
    """Returns the token with this hash, if it has not been revoked."""
    return session.scalars(select(Token).where(Token.sha256 == sha256, Token.revoked_at_ms.is_(None))).first()


def add(session: Session, *, sha256: str, name: str, role: Role, at_ms: int) -> None:
    """Stores a token by its hash."""
    session.add(Token(sha256=sha256, name=name, role=role, created_at_ms=at_ms))
