"""Queries on subscriptions, and the outbox of their deliveries."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete, func, literal, select, true, update

from keyscale.vocabulary import Channel, DeliveryStatus

from ..event_kinds import notification_of
from ..job_scope import JobScope
from ..models import Delivery, Event, Job, Subscription
from .pages import read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session

    from .pages import Page, PageRequest


class Due(NamedTuple):
    """A delivery to send, with everything that its message has."""

    delivery: Delivery
    subscription: Subscription
    event: Event
    job: Job | None


def selector_of(subscription: Subscription) -> JobScope:
    """Returns the jobs that a subscription has chosen."""
    return JobScope(frozenset(subscription.job_names), subscription.job_labels)


def scope_of(subscription: Subscription) -> JobScope:
    """Returns the jobs that a subscription's owner may see."""
    any_labels = frozenset((name, value) for name, value in subscription.owner_any_labels)
    return JobScope(frozenset(subscription.owner_job_names), subscription.owner_job_labels, any_labels)


def covers(subscription: Subscription, job: Job | None) -> bool:
    """Returns whether a subscription is about a job, or None: the platform."""
    scopes = (selector_of(subscription), scope_of(subscription))
    if job is None:
        return all(scope.is_everything for scope in scopes)
    return all(scope.covers(job_id=job.id, name=job.name, labels=job.labels) for scope in scopes)


def notify(session: Session, event: Event) -> None:
    """Writes the deliveries of an event to the outbox, within its transaction."""
    kind = notification_of(event.kind)
    if kind is None:
        return
    wanted = session.scalars(select(Subscription).where(Subscription.kinds.contains([kind]))).all()
    if not wanted:
        return
    job = None if event.job_id is None else session.get(Job, event.job_id)
    if event.job_id is not None and job is None:  # deleted: whether a scope covers it is unknown
        return
    for subscription in wanted:
        if covers(subscription, job):
            add_delivery(session, subscription, event)


def add_delivery(session: Session, subscription: Subscription, event: Event) -> Delivery:
    """Writes an event's delivery to a subscription to the outbox."""
    session.flush()  # the event gets its id
    delivery = Delivery(
        id=f"msg_{uuid.uuid4().hex}",
        subscription_id=subscription.id,
        event_id=event.id,
        status=DeliveryStatus.PENDING,
        created_at_ms=event.at_ms,
        next_at_ms=event.at_ms,
    )
    session.add(delivery)
    return delivery


def find(session: Session, subscription_id: str, owner_id: str | None) -> Subscription | None:
    """Returns a subscription; with an owner, only if it is the owner's."""
    found = session.get(Subscription, subscription_id)
    return found if found is not None and owner_id in {None, found.owner_id} else None


def list_all(session: Session, owner_id: str | None, channels: Collection[Channel] = ()) -> Sequence[Subscription]:
    """Returns subscriptions, the newest first.

    Without an owner or channels, every owner or channel is in the list.
    """
    statement = select(Subscription).order_by(Subscription.created_at_ms.desc(), Subscription.id)
    if owner_id is not None:
        statement = statement.where(Subscription.owner_id == owner_id)
    if channels:
        statement = statement.where(Subscription.channel.in_(channels))
    return session.scalars(statement).all()


def remove_of(session: Session, owner_id: str) -> list[str]:
    """Deletes the subscriptions of an owner with their deliveries; returns their ids."""
    return list(
        session.scalars(delete(Subscription).where(Subscription.owner_id == owner_id).returning(Subscription.id))
    )


def count(session: Session) -> int:
    """Returns the number of subscriptions."""
    return session.scalar(select(func.count()).select_from(Subscription)) or 0


def counts(session: Session) -> dict[str, tuple[int, int]]:
    """Returns each subscription's pending and failed deliveries."""
    pending, failed = (
        func.count().filter(Delivery.status == status) for status in (DeliveryStatus.PENDING, DeliveryStatus.FAILED)
    )
    rows = select(Delivery.subscription_id, pending, failed).group_by(Delivery.subscription_id)
    return {subscription_id: (waiting, lost) for subscription_id, waiting, lost in session.execute(rows)}


def list_deliveries(session: Session, subscription_id: str, page: PageRequest) -> Page[Delivery]:
    """Returns a subscription's newest deliveries."""
    statement = select(Delivery).where(Delivery.subscription_id == subscription_id)
    return read_page(session, statement, (Delivery.created_at_ms, Delivery.id), page)


def event_kinds(session: Session, deliveries: Sequence[Delivery]) -> dict[int, str]:
    """Returns the kinds of the events of deliveries, by the events' ids."""
    ids = {delivery.event_id for delivery in deliveries}
    return dict(session.execute(select(Event.id, Event.kind).where(Event.id.in_(ids))).all())


def claim_due(
    session: Session, now_ms: int, *, channels: Collection[Channel], lease_ms: int, each_max: int
) -> list[Due]:
    """Claims the due deliveries, a few of each subscription.

    Each counts as attempted, and becomes due again after the lease: if its sender dies, it is sent again.

    Args:
        session: The transaction.
        now_ms: The present time.
        channels: The channels of the subscriptions.
        lease_ms: How long the sender may take.
        each_max: The most deliveries of one subscription.
    """
    is_due = (Delivery.status == DeliveryStatus.PENDING, Delivery.next_at_ms <= now_ms)
    first = (
        select(Delivery.id)
        .where(Delivery.subscription_id == Subscription.id, *is_due)
        .order_by(Delivery.next_at_ms)
        .limit(each_max)
        .lateral()
    )
    of_channels = Subscription.channel.in_(channels)
    ids = session.scalars(select(first.c.id).select_from(Subscription).join(first, true()).where(of_channels)).all()
    if not ids:
        return []
    claimed = session.scalars(
        update(Delivery)
        .where(Delivery.id.in_(ids), *is_due)
        .values(
            attempts=Delivery.attempts + 1, last_attempt_at_ms=literal(now_ms), next_at_ms=literal(now_ms + lease_ms)
        )
        .returning(Delivery.id)
    ).all()
    rows = session.execute(
        select(Delivery, Subscription, Event, Job)
        .join(Subscription, Subscription.id == Delivery.subscription_id)
        .join(Event, Event.id == Delivery.event_id)
        .outerjoin(Job, Job.id == Event.job_id)
        .where(Delivery.id.in_(claimed))
        .order_by(Event.id)
    ).all()
    return [Due(*row) for row in rows]


def settle(
    session: Session,
    delivery_id: str,
    attempts: int,
    *,
    status: DeliveryStatus,
    now_ms: int,
    next_at_ms: int | None,
    problem: str | None,
) -> bool:
    """Stores the result of an attempt, unless a later attempt has begun."""
    changed = session.scalar(
        update(Delivery)
        .where(Delivery.id == delivery_id, Delivery.status == DeliveryStatus.PENDING, Delivery.attempts == attempts)
        .values(
            status=status,
            next_at_ms=next_at_ms,
            ended_at_ms=None if status is DeliveryStatus.PENDING else now_ms,
            problem=problem,
        )
        .returning(Delivery.id)
    )
    return changed is not None


def remove_deliveries(session: Session, *, keep: int) -> int:
    """Removes all deliveries but the newest of each subscription."""
    newest = (
        func.row_number()
        .over(partition_by=Delivery.subscription_id, order_by=(Delivery.created_at_ms.desc(), Delivery.id.desc()))
        .label("place")
    )
    ranked = select(Delivery.id, newest).subquery()
    gone = delete(Delivery).where(Delivery.id.in_(select(ranked.c.id).where(ranked.c.place > keep)))
    return len(session.scalars(gone.returning(Delivery.id)).all())
