"""The tables of replicas and of their key."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class Replica(Base):
    """A control plane on this database, with its address for drivers."""

    __tablename__ = "replicas"

    id: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    seen_at_ms: Mapped[int]


class ReplicaKey(Base):
    """The key that only the replicas of this database know.

    The table has one row.
    """

    __tablename__ = "replica_key"

    value: Mapped[str] = mapped_column(primary_key=True)
