"""The table of replicas."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class Replica(Base):
    """A control plane that runs on this database, and the address at which drivers reach it."""

    __tablename__ = "replicas"

    id: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    seen_at_ms: Mapped[int]
