"""Queries on replicas, with times by the database's clock.

All replicas share that clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, cast, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from ..models import Replica, ReplicaKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

SEEN_WITHIN_MS = 30_000
_NOW_MS = cast(func.extract("epoch", func.clock_timestamp()) * 1000, BigInteger)


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """A replica at one moment."""

    url: str
    seen_at_ms: int
    is_alive: bool


def announce(session: Session, replica_id: str, url: str) -> None:
    """Records that a replica is alive, and forgets long dead replicas."""
    session.execute(
        insert(Replica)
        .values(id=replica_id, url=url, seen_at_ms=_NOW_MS)
        .on_conflict_do_update(index_elements=[Replica.id], set_={"url": url, "seen_at_ms": _NOW_MS})
    )
    session.execute(delete(Replica).where(Replica.seen_at_ms < _NOW_MS - 100 * SEEN_WITHIN_MS))


def withdraw(session: Session, replica_id: str) -> None:
    """Forgets a replica that ends."""
    session.execute(delete(Replica).where(Replica.id == replica_id))


def url_of(session: Session, replica_id: str) -> str | None:
    """Returns the address of a replica that is alive, or None."""
    alive = (Replica.id == replica_id, Replica.seen_at_ms > _NOW_MS - SEEN_WITHIN_MS)
    return session.scalar(select(Replica.url).where(*alive))


def shared_key(session: Session) -> str:
    """Returns what only the replicas of this database know."""
    return session.scalars(select(ReplicaKey.value)).one()


def list_all(session: Session) -> Sequence[ReplicaSeen]:
    """Returns all known replicas, by their addresses."""
    is_alive = Replica.seen_at_ms > _NOW_MS - SEEN_WITHIN_MS
    rows = session.execute(select(Replica.url, Replica.seen_at_ms, is_alive).order_by(Replica.url, Replica.id))
    return [ReplicaSeen(*row) for row in rows]


def urls(session: Session) -> Sequence[str]:
    """Returns the addresses of live replicas, the last seen first."""
    return session.scalars(
        select(Replica.url).where(Replica.seen_at_ms > _NOW_MS - SEEN_WITHIN_MS).order_by(Replica.seen_at_ms.desc())
    ).all()
