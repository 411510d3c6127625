"""Events: what happened, and who did it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.events.schemas import EventAnswer, EventList

from ..call import Call, Pages
from ..method import ListMethod, Noun, S

if TYPE_CHECKING:
    from collections.abc import Sequence


class Events(Noun[S]):
    """Events, the newest first."""

    @ListMethod
    def list(
        self,
        *,
        job: str | None = None,
        kind: Sequence[str] | None = None,
        actor: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        limit: int | None = None,
    ) -> Pages[EventAnswer]:
        """Lists the events in the user's scope, of deleted jobs too."""
        query = {"job": job, "kind": kind, "actor": actor, "from_ms": from_ms, "to_ms": to_ms, "limit": limit}
        return _events("/v1/events", {}, query)

    @ListMethod
    def list_of_job(
        self,
        job: str,
        *,
        kind: Sequence[str] | None = None,
        actor: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        limit: int | None = None,
    ) -> Pages[EventAnswer]:
        """Lists the events of a job that exists."""
        query = {"kind": kind, "actor": actor, "from_ms": from_ms, "to_ms": to_ms, "limit": limit}
        return _events("/v1/jobs/{job_id}/events", {"job_id": job}, query)


def _events(template: str, places: dict[str, str | int], query: dict[str, Any]) -> Pages[EventAnswer]:
    return Pages(Call("GET", template, EventList, places, query), "events")
