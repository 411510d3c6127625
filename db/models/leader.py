"""The table of the leader."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class Leader(Base):
    """The replica that leads, or led last; the table has one row.

    The epoch is the primary key for its locks: a transaction that shares the key keeps a new epoch from beginning until
    the transaction ends, and does not keep the leader from recording its beat.
    """

    __tablename__ = "leader"

    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    url: Mapped[str]
    elected_at_ms: Mapped[int]
    beat_at_ms: Mapped[int]
