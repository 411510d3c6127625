"""The message of a webhook: a signed CloudEvent.

The body is a CloudEvent 1.0 in JSON (https://cloudevents.io), the signature follows Standard Webhooks
(https://www.standardwebhooks.com). Pure.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyscale.db.models import Event, Job

SECRET_PREFIX = "whsec_"  # noqa: S105 - the form of a secret
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
TYPE_PREFIX = "keyscale."


def new_secret() -> str:
    """Returns a new secret for signatures."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def cloud_event(event: Event, job: Job | None, source: str) -> dict[str, Any]:
    """Returns an event as a CloudEvent.

    Args:
        event: The event. Two subscriptions to it get the same `id`.
        job: Its job; None: it is about no job.
        source: The address of the control plane.
    """
    about = None if job is None else {"id": job.id, "name": job.name, "labels": job.labels}
    return {
        "specversion": "1.0",
        "id": str(event.id),
        "source": source,
        "type": TYPE_PREFIX + event.kind.lower(),
        **({} if job is None else {"subject": f"jobs/{job.id}"}),
        "time": datetime.fromtimestamp(event.at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds"),
        "datacontenttype": "application/json",
        "data": {
            "kind": event.kind,
            "message": event.message,
            "job": about,
            "actor": event.actor,
            "at_ms": event.at_ms,
            "details": event.details,
        },
    }


def written(value: Any) -> bytes:
    """Returns a value as JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def signed_headers(secret: str, message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """Returns the headers that prove who sent a message.

    Args:
        secret: The subscription's secret.
        message_id: The same for every attempt to deliver the message.
        at_s: The time of the attempt, in seconds since the epoch.
        body: The body of the request.
    """
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signature = hmac.digest(key, f"{message_id}.{at_s}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": "v1," + base64.b64encode(signature).decode(),
    }
