"""The routes of subscriptions to notifications."""

from typing import Annotated

from fastapi import APIRouter, Query

from keyscale.vocabulary import Channel

from ..access.identities import Operator
from ..control_plane.dependencies import ContextOf, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from . import subscriptions
from .schemas import (
    DeliveryAnswer,
    DeliveryList,
    NewSubscriptionAnswer,
    SubscriptionAnswer,
    SubscriptionList,
    SubscriptionRequest,
)

Channels = Annotated[list[Channel], Query(max_length=len(Channel), description="Only these channels.")]

router = APIRouter(prefix="/subscriptions", tags=["subscriptions"], route_class=GuardedRoute)


@router.post("", status_code=201)
def create_subscription(context: ContextOf, user: Operator, request: SubscriptionRequest) -> NewSubscriptionAnswer:
    """Creates a subscription within the user's scope.

    Only this answer contains its secret; it cannot be read again.
    """
    return subscriptions.create(context, user, request)


@router.get("")
def list_subscriptions(
    context: ContextOf,
    user: Operator,
    channel: Channels = [],  # noqa: B006 - FastAPI copies it
) -> SubscriptionList:
    """Lists the user's subscriptions, for administrators all, the newest first."""
    return subscriptions.list_all(context, user, channel)


@router.get("/{subscription_id}")
def show_subscription(context: ContextOf, user: Operator, subscription_id: str) -> SubscriptionAnswer:
    """Shows a subscription."""
    return subscriptions.show(context, user, subscription_id)


@router.delete("/{subscription_id}", status_code=204)
def delete_subscription(context: ContextOf, user: Operator, subscription_id: str) -> None:
    """Deletes a subscription with its deliveries."""
    subscriptions.delete(context, user, subscription_id)


@router.post("/{subscription_id}/test", status_code=202)
def test_subscription(context: ContextOf, user: Operator, subscription_id: str) -> DeliveryAnswer:
    """Sends a test message; the list of deliveries has its result."""
    return subscriptions.test(context, user, subscription_id)


@router.get("/{subscription_id}/deliveries")
def list_deliveries(context: ContextOf, user: Operator, subscription_id: str, listing: ListingOf) -> DeliveryList:
    """Lists the deliveries of a subscription, the newest first."""
    return subscriptions.list_deliveries(context, user, subscription_id, listing)
