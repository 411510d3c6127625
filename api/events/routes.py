"""The routes of events."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from keyscale.db.event_kinds import EVENT_KINDS
from keyscale.db.repositories.events import EventFilter

from ..access.identities import User
from ..control_plane.dependencies import ContextOf, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from ..shapes import NUMBER_MAX, TEXT_PATTERN
from . import event_export, events
from .event_export import ExportFormat
from .schemas import EventList

router = APIRouter(tags=["events"], route_class=GuardedRoute)

_KINDS = ", ".join(sorted(EVENT_KINDS))
_KINDS_MAX = 20


def _known(kind: str) -> str:
    """Refuses a kind that no event has.

    Its list would be empty without a reason.
    """
    if kind not in EVENT_KINDS:
        raise PydanticCustomError("event_kind", "no event has this kind; the kinds are {kinds}", {"kinds": _KINDS})
    return kind


Kinds = Annotated[
    list[
        Annotated[
            str,
            Query(pattern=r"^[A-Z][A-Z0-9_]{0,63}$", json_schema_extra={"enum": sorted(EVENT_KINDS)}),
            AfterValidator(_known),
        ]
    ],
    Query(
        max_length=_KINDS_MAX,
        description="Only these kinds. Default: every kind but refused requests (`ACCESS_DENIED`).",
    ),
]
Actor = Annotated[
    str | None, Query(pattern=TEXT_PATTERN, max_length=200, description="Only events that this user or driver caused.")
]
Since = Annotated[int | None, Query(ge=0, le=NUMBER_MAX, description="Only events at or after this time.")]
Until = Annotated[int | None, Query(ge=0, le=NUMBER_MAX, description="Only events at or before this time.")]
Job = Annotated[
    str | None,
    Query(
        pattern=TEXT_PATTERN,
        max_length=200,
        description="Only events of the job with this id or name; of a deleted job by its id.",
    ),
]


Format = Annotated[ExportFormat, Query(description="The form of a line.")]


async def _filter(kind: Kinds = [], actor: Actor = None, from_ms: Since = None, to_ms: Until = None) -> EventFilter:  # noqa: B006 - FastAPI copies it
    return EventFilter(frozenset(kind), actor, from_ms, to_ms, with_refusals=False)


FilterOf = Annotated[EventFilter, Depends(_filter)]


@router.get("/events")
def list_all_events(context: ContextOf, user: User, listing: ListingOf, chosen: FilterOf, job: Job = None) -> EventList:
    """Lists the events in the user's scope, newest first.

    Events concern jobs, deleted jobs too, and artifacts. Administrators also see sign-ins, changes of tokens, the
    addresses of requests, and refused requests with `kind=ACCESS_DENIED`.
    """
    return events.list_events(context, user, job, listing, chosen)


@router.get("/events/export", response_class=StreamingResponse)
def export_events(
    context: ContextOf,
    user: User,
    chosen: FilterOf,
    job: Job = None,
    format: Format = ExportFormat.NDJSON,  # noqa: A002 - the name in the query
) -> StreamingResponse:
    """Exports all chosen events, newest first, as lines of JSON or CSV."""
    return StreamingResponse(event_export.exported(context, user, job, chosen, format), media_type=format.content_type)


@router.get("/jobs/{job_id}/events")
def list_events(context: ContextOf, user: User, job_id: str, listing: ListingOf, chosen: FilterOf) -> EventList:
    """Lists a job's events, newest first."""
    return events.list_job_events(context, user, job_id, listing, chosen)
