"""Subscriptions to notifications, and their deliveries."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, Strict

from keyscale.vocabulary import PLATFORM_NOTIFICATIONS, Channel, DeliveryStatus, NotificationKind

from ..access_tokens.schemas import ScopeModel
from ..shapes import Answer, ListAnswer, Request, example, only_if

TARGET_CHARACTERS_MAX = 2000
ROUTING_KEY_PATTERN = "[A-Za-z0-9]{32}"
MAIL_ADDRESS_PATTERN = r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,255}"


def _target(pattern: str) -> dict[str, Any]:
    return {"properties": {"target": {"pattern": f"^{pattern}$"}}}


_WITHOUT_PLATFORM = {
    "not": {
        "properties": {
            "selector": {"type": "object"},
            "kinds": {"type": "array", "contains": {"enum": sorted(PLATFORM_NOTIFICATIONS)}},
        },
        "required": ["selector", "kinds"],
    }
}
"""What is notified about the platform is about no job that a selector can name."""


class SubscriptionRequest(Request):
    """A new subscription."""

    model_config = ConfigDict(
        json_schema_extra=only_if(
            *("channel", "PAGERDUTY"),
            _target(ROUTING_KEY_PATTERN),
            only_if("channel", "MAIL", _target(MAIL_ADDRESS_PATTERN), _target("https?://[!-~]+")),
        )
        | _WITHOUT_PLATFORM
    )

    channel: Annotated[Channel, Strict(False)] = Field(default=Channel.WEBHOOK, description="How messages are sent.")
    target: str = Field(
        min_length=1,
        max_length=TARGET_CHARACTERS_MAX,
        description=(
            "Where messages are sent: the URL of a webhook of yours, of Slack or of Teams, a routing key of PagerDuty,"
            " or a mail address. It is never shown again in full."
        ),
    )
    kinds: list[Annotated[NotificationKind, Strict(False)]] | None = Field(
        default=None,
        min_length=1,
        max_length=len(NotificationKind),
        description=(
            "What is notified. Default: everything; without a selector and for users who see every job, also"
            " `DATABASE_AWAY` and `NO_LEADER`."
        ),
    )
    selector: ScopeModel | None = Field(default=None, description="Default: every job that its owner may see.")


class SubscriptionAnswer(Answer):
    """A subscription, without its secret."""

    model_config = example(
        id="7a0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
        channel="WEBHOOK",
        target="https://alerts.example.com/…",
        kinds=["JOB_FAILED", "RESTARTING_IN_A_LOOP"],
        selector={"jobs": [], "labels": {"team": "billing"}},
        created_by="admin",
        created_at_ms=1_795_000_000_000,
        pending_count=0,
        failed_count=0,
    )

    id: str
    channel: Channel
    target: str = Field(description="The target without the parts that may be secret.")
    kinds: list[NotificationKind]
    selector: ScopeModel | None = Field(description="null: every job that its owner may see.")
    created_by: str
    created_at_ms: int
    pending_count: int = Field(description="Deliveries that will be sent, for the first time or again.")
    failed_count: int = Field(description="Kept deliveries that have failed for good.")


class NewSubscriptionAnswer(SubscriptionAnswer):
    """A subscription with its secret, which is never shown again."""

    secret: str | None = Field(
        description="Verifies the signatures of a webhook, by Standard Webhooks. null: another channel."
    )


class SubscriptionList(Answer):
    """The subscriptions that the user may see, the newest first."""

    subscriptions: list[SubscriptionAnswer]


class DeliveryAnswer(Answer):
    """A message about an event to a subscription."""

    id: str = Field(description="The header `webhook-id` of each attempt.")
    subscription_id: str
    event_id: int
    kind: str = Field(description="The kind of the event.")
    status: DeliveryStatus
    created_at_ms: int
    attempts: int
    last_attempt_at_ms: int | None
    next_at_ms: int | None = Field(description="When it is sent next; null: it has ended.")
    ended_at_ms: int | None
    problem: str | None = Field(description="Why the last attempt failed.")


class DeliveryList(ListAnswer):
    """Deliveries of a subscription, the newest first."""

    deliveries: list[DeliveryAnswer]
