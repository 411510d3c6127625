"""The table of events."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Identity
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.db.base import Base


class Event(Base):
    """An event of the audit trail: what happened, who did it, and from where. Events outlive their job.

    `actor_id`, `address` and `request_id` are those of the request that caused it; None for the system's own actions.
    """

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[str | None] = mapped_column(index=True)
    at_ms: Mapped[int]
    kind: Mapped[str]
    actor: Mapped[str]
    actor_id: Mapped[str | None]
    address: Mapped[str | None]
    request_id: Mapped[str | None]
    message: Mapped[str]
    details: Mapped[dict[str, Any]]
