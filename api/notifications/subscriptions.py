"""Subscriptions to notifications: create, list, test and delete them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import Subscription
from keyscale.db.repositories import events, subscriptions
from keyscale.vocabulary import PLATFORM_NOTIFICATIONS, Channel, NotificationKind, Role

from ..access_tokens.schemas import ScopeModel
from ..control_plane.cursors import write_cursor
from ..database_clock import shared_now_ms
from ..errors import RequestInvalidError, SubscriptionNotFoundError, SubscriptionRefusedError
from .channels import problem_of_target, shown_target
from .cloud_event import new_secret
from .schemas import (
    DeliveryAnswer,
    DeliveryList,
    NewSubscriptionAnswer,
    SubscriptionAnswer,
    SubscriptionList,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from sqlalchemy.orm import Session

    from keyscale.db.models import Delivery, Event

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing
    from ..settings import Settings
    from .schemas import SubscriptionRequest

SUBSCRIPTIONS_MAX = 200


def create(context: Context, user: Principal, request: SubscriptionRequest) -> NewSubscriptionAnswer:
    """Creates a subscription within the user's scope.

    Only this answer ever shows its secret.

    Raises:
        RequestInvalidError: The selector names nothing, or excludes the kinds.
        SubscriptionRefusedError: The control plane cannot send to the target, or has too many subscriptions.
    """
    selector = (
        EVERYTHING if request.selector is None else JobScope(frozenset(request.selector.jobs), request.selector.labels)
    )
    if request.selector is not None and selector.is_everything:
        raise RequestInvalidError("selector: name a job or a label, or leave the selector out")
    kinds = _kinds(request, of_platform=selector.is_everything and user.scope.is_everything)
    _check_target(context.settings, request)
    at_ms = shared_now_ms()
    with context.sessions.begin() as session:
        if subscriptions.count(session) >= SUBSCRIPTIONS_MAX:
            raise SubscriptionRefusedError(f"at most {SUBSCRIPTIONS_MAX} subscriptions are allowed")
        subscription = Subscription(
            id=uuid.uuid4().hex,
            channel=request.channel,
            target=request.target,
            secret=new_secret() if request.channel is Channel.WEBHOOK else None,
            kinds=kinds,
            job_names=sorted(selector.jobs),
            job_labels=dict(selector.labels),
            owner_job_names=sorted(user.scope.jobs),
            owner_job_labels=dict(user.scope.labels),
            owner_any_labels=[list(label) for label in sorted(user.scope.any_labels)],
            owner_id=user.id,
            created_by=user.name,
            created_at_ms=at_ms,
        )
        session.add(subscription)
        _record(session, user, "SUBSCRIPTION_CREATED", f"created a subscription to {', '.join(kinds)}", subscription)
    return NewSubscriptionAnswer(**_fields(subscription, {}), secret=subscription.secret)


def list_all(context: Context, user: Principal, channels: Collection[Channel]) -> SubscriptionList:
    """Lists the user's subscriptions; of administrators, all subscriptions.

    Without channels, every channel is in the list.
    """
    with context.reads() as session:
        found = subscriptions.list_all(session, _owner(user), channels)
        counts = subscriptions.counts(session)
    return SubscriptionList(subscriptions=[SubscriptionAnswer(**_fields(each, counts)) for each in found])


def show(context: Context, user: Principal, subscription_id: str) -> SubscriptionAnswer:
    """Shows a subscription.

    Raises:
        SubscriptionNotFoundError: The user has no subscription of this id.
    """
    with context.reads() as session:
        found = _require(session, user, subscription_id)
        return SubscriptionAnswer(**_fields(found, subscriptions.counts(session)))


def delete(context: Context, user: Principal, subscription_id: str) -> None:
    """Deletes a subscription with its deliveries.

    Raises:
        SubscriptionNotFoundError: The user has no subscription of this id.
    """
    with context.sessions.begin() as session:
        found = _require(session, user, subscription_id)
        session.delete(found)
        _record(session, user, "SUBSCRIPTION_DELETED", "deleted a subscription", found)


def test(context: Context, user: Principal, subscription_id: str) -> DeliveryAnswer:
    """Sends a test message through the outbox.

    Raises:
        SubscriptionNotFoundError: The user has no subscription of this id.
    """
    with context.sessions.begin() as session:
        found = _require(session, user, subscription_id)
        event = _record(session, user, "SUBSCRIPTION_TESTED", "this is a test of a subscription", found)
        delivery = subscriptions.add_delivery(session, found, event)
        session.flush()
        return _shown(delivery, event.kind)


def list_deliveries(context: Context, user: Principal, subscription_id: str, listing: Listing) -> DeliveryList:
    """Lists the deliveries of a subscription, the newest first.

    Raises:
        SubscriptionNotFoundError: The user has no subscription of this id.
    """
    with context.reads() as session:
        _require(session, user, subscription_id)
        page = subscriptions.list_deliveries(session, subscription_id, listing.page(int, str))
        kinds = subscriptions.event_kinds(session, page.rows)
    shown = [_shown(each, kinds[each.event_id]) for each in page.rows]
    return DeliveryList(deliveries=shown, next=write_cursor(page.next))


def _kinds(request: SubscriptionRequest, *, of_platform: bool) -> list[str]:
    if request.kinds is None:
        chosen = set(NotificationKind) - (set() if of_platform else PLATFORM_NOTIFICATIONS)
    else:
        chosen = set(request.kinds)
    if not of_platform and (wrong := sorted(chosen & PLATFORM_NOTIFICATIONS)):
        raise RequestInvalidError(
            f"kinds: {', '.join(wrong)} is about no job; it needs a user who sees every job, and no selector"
        )
    return [str(kind) for kind in NotificationKind if kind in chosen]


def _check_target(settings: Settings, request: SubscriptionRequest) -> None:
    needs_https = not settings.allows_private_targets
    problem = problem_of_target(request.channel, request.target, needs_https=needs_https)
    if problem is None and request.channel is Channel.MAIL and settings.mail_server is None:
        problem = "this control plane has no mail server: KEYSCALE_SMTP_URL is not set"
    if problem is not None:
        raise SubscriptionRefusedError(f"target: {problem}")


def _owner(user: Principal) -> str | None:
    return None if user.may_act_as(Role.ADMIN) else user.id


def _require(session: Session, user: Principal, subscription_id: str) -> Subscription:
    found = subscriptions.find(session, subscription_id, _owner(user))
    if found is None:
        raise SubscriptionNotFoundError("no subscription has this id")
    return found


def _record(session: Session, user: Principal, kind: str, message: str, subscription: Subscription) -> Event:
    return events.record(
        session,
        job_id=None,
        at_ms=shared_now_ms(),
        kind=kind,
        actor=user.name,
        message=message,
        subscription_id=subscription.id,
        channel=subscription.channel,  # without the target, as every viewer may see the event
    )


def _fields(subscription: Subscription, counts: dict[str, tuple[int, int]]) -> dict[str, Any]:
    selector = subscriptions.selector_of(subscription)
    pending, failed = counts.get(subscription.id, (0, 0))
    return {
        "id": subscription.id,
        "channel": subscription.channel,
        "target": shown_target(subscription.channel, subscription.target),
        "kinds": subscription.kinds,
        "selector": None
        if selector.is_everything
        else ScopeModel(jobs=sorted(selector.jobs), labels=dict(selector.labels)),
        "created_by": subscription.created_by,
        "created_at_ms": subscription.created_at_ms,
        "pending_count": pending,
        "failed_count": failed,
    }


def _shown(delivery: Delivery, kind: str) -> DeliveryAnswer:
    names = DeliveryAnswer.model_fields.keys() - {"kind"}
    return DeliveryAnswer(**{name: getattr(delivery, name) for name in names}, kind=kind)
