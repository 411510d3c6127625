"""The table of events."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base

ACCESS_KINDS = ("ACCESS_DENIED", "SIGNED_IN", "SIGNED_OUT", "TOKEN_CREATED", "TOKEN_REVOKED")
"""The kinds of events about users and tokens, without a job.

Only administrators see them.
"""
SHOWN_TO_ALL = f"kind NOT IN ({', '.join(map(repr, ACCESS_KINDS))})"
"""The condition of all other events.

An index has just these, because any sender can cause very many refusals.
"""


REFUSAL = "ACCESS_DENIED"
NOT_REFUSED = f"kind <> '{REFUSAL}'"
"""The condition of all events but refusals, which an index has, too."""


class Event(Base):
    """An event of the audit trail, which outlives its job.

    It says what happened, who did it, and from where. `actor_id`, `address` and `request_id` belong to the request that
    caused it; None for the system's own actions.
    """

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_job", "job_id", "id"),
        Index("ix_events_job_at_ms", "job_id", "at_ms", "id", postgresql_include=["kind"]),
        Index("ix_events_kind", "kind", "id"),
        Index("ix_events_actor", "actor", "id"),
        Index("ix_events_not_refused", "id", postgresql_where=text(NOT_REFUSED)),
        Index("ix_events_shown_to_all", "id", postgresql_where=text(SHOWN_TO_ALL)),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[str | None]
    at_ms: Mapped[int] = mapped_column(index=True)
    kind: Mapped[str]
    actor: Mapped[str]
    actor_id: Mapped[str | None]
    address: Mapped[str | None]
    request_id: Mapped[str | None]
    message: Mapped[str]
    details: Mapped[dict[str, Any]]
