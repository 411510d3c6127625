"""The form of a notification in each channel. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from keyscale.db.event_kinds import ALARM_ENDED, notification_of
from keyscale.vocabulary import Channel, NotificationKind

from .cloud_event import CONTENT_TYPE, cloud_event, signed_headers, written
from .schemas import MAIL_ADDRESS_PATTERN, ROUTING_KEY_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.db.models import Event, Job, Subscription
    from keyscale.db.repositories.subscriptions import Due

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
_ROUTING_KEY = re.compile(ROUTING_KEY_PATTERN)
_MAIL_ADDRESS = re.compile(MAIL_ADDRESS_PATTERN)
_NOT_PRINTABLE = re.compile(r"[^\x21-\x7e]")
_CRITICAL = frozenset(
    {
        NotificationKind.JOB_FAILED,
        NotificationKind.RECORDS_LOST,
        NotificationKind.STORE_AWAY,
        NotificationKind.DATABASE_AWAY,
        NotificationKind.NO_LEADER,
    }
)


@dataclass(frozen=True, slots=True)
class Post:
    """An HTTP request to send."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


def problem_of_target(channel: Channel, target: str, *, needs_https: bool) -> str | None:
    """Returns what is wrong with the form of a target, if anything.

    Args:
        channel: How messages are sent.
        target: Where messages are sent.
        needs_https: Whether a URL must begin with https://.
    """
    match channel:
        case Channel.PAGERDUTY:
            return None if _ROUTING_KEY.fullmatch(target) else "it must be a routing key of 32 letters and digits"
        case Channel.MAIL:
            return None if _MAIL_ADDRESS.fullmatch(target) else "it must be one mail address"
    return _problem_of_url(target, ("https",) if needs_https else ("https", "http"))


def _problem_of_url(url: str, schemes: tuple[str, ...]) -> str | None:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or _NOT_PRINTABLE.search(url):
        return f"it must be a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    if "@" in urlsplit(url).netloc:
        return "a URL with a user or password is not allowed"
    return None


def shown_target(channel: Channel, target: str) -> str:
    """Returns a target without the parts that may be secret."""
    match channel:
        case Channel.MAIL:
            return target
        case Channel.PAGERDUTY:
            return f"…{target[-4:]}"
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.netloc}/" + ("…" if parts.path.strip("/") or parts.query else "")


def post_of(due: Due, source: str, at_s: int) -> Post:
    """Returns the request that delivers a message.

    Args:
        due: The delivery; its channel is not MAIL.
        source: The address of the control plane.
        at_s: The present time, in seconds since the epoch.
    """
    target, event, job = due.subscription.target, due.event, due.job
    match due.subscription.channel:
        case Channel.WEBHOOK:
            body = written(cloud_event(event, job, source))
            signature = signed_headers(due.subscription.secret or "", due.delivery.id, at_s, body)
            return Post(target, body, {"Content-Type": CONTENT_TYPE, **signature})
        case Channel.SLACK:
            text = text_of(event, job, source)
            for sign, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
                text = text.replace(sign, code)
            return Post(target, written({"text": text}))
        case Channel.TEAMS:
            return Post(target, written(_adaptive_card(text_of(event, job, source))))
        case _:
            return Post(PAGERDUTY_URL, written(_incident(due.subscription, event, job, source)))


def mail_of(due: Due, source: str, sender: str) -> EmailMessage:
    """Returns the mail that delivers a message."""
    mail = EmailMessage()
    mail["Subject"] = _headline(due.event, due.job)
    mail["From"], mail["To"] = sender, due.subscription.target
    mail["Message-ID"] = f"<{due.delivery.id}@keyscale>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text_of(due.event, due.job, source))
    return mail


def text_of(event: Event, job: Job | None, source: str) -> str:
    """Returns a notification as lines for people."""
    page = f"{source}/ui/system" if job is None else f"{source}/ui/jobs/{quote(job.name, safe='')}/overview"
    return f"{_headline(event, job)}\n{event.message}\n{page}"


def _headline(event: Event, job: Job | None) -> str:
    return f"{'Keyscale' if job is None else job.name}: {event.kind.replace('_', ' ').lower()}"


def _adaptive_card(text: str) -> dict[str, Any]:
    blocks = [{"type": "TextBlock", "text": line, "wrap": True} for line in text.splitlines()]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _incident(subscription: Subscription, event: Event, job: Job | None, source: str) -> dict[str, Any]:
    """Returns an event of PagerDuty's API.

    The end of an alarm resolves its incident.
    """
    kind = notification_of(event.kind)
    severity = "critical" if kind in _CRITICAL else "info" if kind == "OPERATION_COMPLETED" else "warning"
    return {
        "routing_key": subscription.target,
        "event_action": "resolve" if event.kind.endswith(ALARM_ENDED) else "trigger",
        "dedup_key": f"keyscale/{kind or event.kind}/{event.job_id or 'platform'}",
        "payload": {
            "summary": f"{_headline(event, job)}: {event.message}"[:1024],
            "source": source,
            "severity": severity,
            "custom_details": cloud_event(event, job, source)["data"],
        },
    }
