"""Subscriptions to notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.notifications.schemas import (
    DeliveryAnswer,
    DeliveryList,
    NewSubscriptionAnswer,
    SubscriptionAnswer,
    SubscriptionList,
    SubscriptionRequest,
)

from ..call import Call, Pages
from ..method import ListMethod, Method, Noun, S, creation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.vocabulary import Channel


class Subscriptions(Noun[S]):
    """Subscriptions to notifications."""

    create = creation("/v1/subscriptions", SubscriptionRequest, NewSubscriptionAnswer)
    """Creates a subscription; only the answer has its secret."""

    @Method
    def list(self, *, channel: Sequence[Channel] | None = None) -> Call[SubscriptionList]:
        """Lists the user's subscriptions, for administrators all, the newest first."""
        return Call("GET", "/v1/subscriptions", SubscriptionList, query={"channel": channel})

    @Method
    def get(self, subscription_id: str) -> Call[SubscriptionAnswer]:
        """Shows a subscription."""
        return Call("GET", "/v1/subscriptions/{subscription_id}", SubscriptionAnswer, _of(subscription_id))

    @Method
    def delete(self, subscription_id: str) -> Call[None]:
        """Deletes a subscription with its deliveries."""
        return Call("DELETE", "/v1/subscriptions/{subscription_id}", None, _of(subscription_id))

    @Method
    def test(self, subscription_id: str) -> Call[DeliveryAnswer]:
        """Sends a test message; the list of deliveries has its result."""
        return Call("POST", "/v1/subscriptions/{subscription_id}/test", DeliveryAnswer, _of(subscription_id))

    @ListMethod
    def deliveries(self, subscription_id: str, *, limit: int | None = None) -> Pages[DeliveryAnswer]:
        """Lists the deliveries of a subscription, the newest first."""
        template = "/v1/subscriptions/{subscription_id}/deliveries"
        call = Call("GET", template, DeliveryList, _of(subscription_id), {"limit": limit})
        return Pages(call, "deliveries")


def _of(subscription_id: str) -> dict[str, str | int]:
    return {"subscription_id": subscription_id}
