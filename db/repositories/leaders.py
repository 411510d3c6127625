"""Queries on the leader, with times by the database's clock.

All replicas share that clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, cast, func, select, update

from ..models import Leader

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

SILENT_MAX_MS = 10_000
_NOW_MS = cast(func.extract("epoch", func.clock_timestamp()) * 1000, BigInteger)


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """The leader at one moment.

    Attributes:
        elected_at_ms: The start of its lead.
        silent_ms: Time since its last beat.
    """

    epoch: int
    url: str
    elected_at_ms: int
    silent_ms: int

    @property
    def is_there(self) -> bool:
        """Whether its last beat is recent."""
        return self.silent_ms <= SILENT_MAX_MS


def begin_epoch(session: Session, url: str) -> int:
    """Begins the next epoch after the present transactions; returns its number.

    Args:
        session: The transaction.
        url: The new leader's address.
    """
    epoch: int | None = session.scalar(
        update(Leader)
        .values(epoch=Leader.epoch + 1, url=url, elected_at_ms=_NOW_MS, beat_at_ms=_NOW_MS)
        .returning(Leader.epoch)
    )
    if epoch is None:
        raise LookupError("the table of the leader is empty")
    return epoch


def share_epoch(session: Session, epoch: int) -> bool:
    """Keeps an epoch alive for this transaction; returns False if it ended."""
    statement = select(Leader.epoch).where(Leader.epoch == epoch).with_for_update(read=True, key_share=True)
    return session.scalar(statement) is not None


def beat(session: Session, epoch: int) -> bool:
    """Records a beat of an epoch's leader; returns False if it ended."""
    statement = update(Leader).where(Leader.epoch == epoch).values(beat_at_ms=_NOW_MS).returning(Leader.epoch)
    return session.scalar(statement) is not None


def read(session: Session) -> LeaderSeen | None:
    """Returns the leader; None before the first."""
    row = session.execute(select(Leader.epoch, Leader.url, Leader.elected_at_ms, _NOW_MS - Leader.beat_at_ms)).one()
    return LeaderSeen(*row) if row[0] else None
