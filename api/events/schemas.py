"""Events, as lists show them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..shapes import Answer, ListAnswer


class EventAnswer(Answer):
    """An event: something that happened, and who did it."""

    id: int
    at_ms: int
    job_id: str | None
    kind: str
    actor: str = Field(description="A user, a driver, or the system.")
    actor_id: str | None = Field(description="Id of the user's token, or of the user at the issuer.")
    address: str | None = Field(description="Where the request came from; only administrators see it.")
    request_id: str | None = Field(description="The header X-Request-ID of the request's answer.")
    message: str
    details: dict[str, Any]


class EventList(ListAnswer):
    """Events, the newest first."""

    events: list[EventAnswer]
