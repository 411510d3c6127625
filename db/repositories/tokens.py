"""Queries on user tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, or_, select, text

from ..models import Token

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session

    from keyscale.vocabulary import Role

    from ..job_scope import JobScope


_NAMES_LOCK = 0x746F6B65
_FIND = select(Token).where(Token.sha256 == bindparam("sha256"))
"""The statement is built once: building costs half as much as sending."""


def lock_names(session: Session) -> None:
    """Keeps other transactions from adding tokens during a name check."""
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _NAMES_LOCK})


def is_name_taken(session: Session, name: str, *, at_ms: int) -> bool:
    """Returns whether a valid token has this name at a time."""
    valid = (Token.revoked_at_ms.is_(None), or_(Token.expires_at_ms.is_(None), Token.expires_at_ms > at_ms))
    return session.scalar(select(Token.id).where(Token.name == name, *valid).limit(1)) is not None


def find(session: Session, sha256: str) -> Token | None:
    """Returns the token with this hash, even if expired or revoked."""
    return session.scalars(_FIND, {"sha256": sha256}).first()


def find_by_id(session: Session, token_id: str) -> Token | None:
    """Returns the token with this id, locked for this transaction."""
    return session.scalars(select(Token).where(Token.id == token_id).with_for_update()).first()


def valid(session: Session, sha256s: Collection[str], *, at_ms: int) -> set[str]:
    """Returns the hashes of tokens that are valid at a time."""
    is_valid = (Token.revoked_at_ms.is_(None), or_(Token.expires_at_ms.is_(None), Token.expires_at_ms > at_ms))
    return set(session.scalars(select(Token.sha256).where(Token.sha256.in_(sha256s), *is_valid)))


def list_all(session: Session, roles: Collection[Role] = ()) -> Sequence[Token]:
    """Returns all tokens, or the tokens of some roles; the newest first."""
    statement = select(Token).order_by(Token.created_at_ms.desc(), Token.id)
    if roles:
        statement = statement.where(Token.role.in_(roles))
    return session.scalars(statement).all()


def add(
    session: Session,
    *,
    token_id: str,
    sha256: str,
    name: str,
    role: Role,
    scope: JobScope,
    at_ms: int,
    expires_at_ms: int | None,
    created_by: str,
) -> Token:
    """Stores a token by its hash."""
    token = Token(
        id=token_id,
        sha256=sha256,
        name=name,
        role=role,
        job_names=sorted(scope.jobs),
        job_labels=dict(scope.labels),
        created_by=created_by,
        created_at_ms=at_ms,
        expires_at_ms=expires_at_ms,
    )
    session.add(token)
    return token
