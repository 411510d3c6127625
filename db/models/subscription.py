"""The tables of subscriptions to notifications, and of their deliveries."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import Channel, DeliveryStatus

from ..base import Base, closed_set


class Subscription(Base):
    """A user's subscription to some kinds of events.

    It covers the jobs of its selector that are also in its owner's scope. Both are kept as job names and labels; a part
    without names and labels covers every job. `target` and `secret` are never shown again.
    """

    __tablename__ = "subscriptions"

    id: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[Channel] = mapped_column(closed_set(Channel, "channel"))
    target: Mapped[str]
    secret: Mapped[str | None]  # with which messages are signed
    kinds: Mapped[list[str]]
    job_names: Mapped[list[str]]
    job_labels: Mapped[dict[str, str]]
    owner_job_names: Mapped[list[str]]
    owner_job_labels: Mapped[dict[str, str]]
    owner_any_labels: Mapped[list[list[str]]]
    owner_id: Mapped[str]
    created_by: Mapped[str]
    created_at_ms: Mapped[int]


class Delivery(Base):
    """A row of the outbox: an event's way to a subscription.

    It is written in the transaction of the event. Until it ends, it is sent at `next_at_ms`; the sender first moves
    `next_at_ms` on, so that a delivery whose sender dies is sent again, with the same id.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_due", "subscription_id", "next_at_ms", postgresql_where=text("status = 'PENDING'")),
        Index("ix_deliveries_created_at_ms", "subscription_id", "created_at_ms", "id"),
        Index("ix_deliveries_event_id", "event_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    subscription_id: Mapped[str] = mapped_column(ForeignKey("subscriptions.id", ondelete="CASCADE"))
    event_id: Mapped[int] = mapped_column(ForeignKey("events.id", ondelete="CASCADE"))
    status: Mapped[DeliveryStatus] = mapped_column(closed_set(DeliveryStatus, "status"))
    created_at_ms: Mapped[int]
    next_at_ms: Mapped[int | None]
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    last_attempt_at_ms: Mapped[int | None]
    ended_at_ms: Mapped[int | None]
    problem: Mapped[str | None]  # why the last attempt failed
