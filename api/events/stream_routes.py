"""The event streams, which report changes so that clients need not poll."""

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..access.credentials import credential_of
from ..access.identities import User
from ..control_plane.context import Context
from ..control_plane.dependencies import ContextOf
from ..control_plane.subscriber import Subject, Subscriber, Topic
from ..jobs import jobs
from ..operations import operations
from ..operations.schemas.operation import OperationAnswer

SECONDS_MAX = 3600

router = APIRouter(tags=["streams"])

Seconds = Annotated[
    float,
    Query(ge=0, le=SECONDS_MAX, description="Maximum duration of the stream; 0: only the present state."),
]


class EventStream(StreamingResponse):
    """An answer of server-sent events, which does not end by itself."""

    media_type = "text/event-stream"

    def __init__(self, context: Context, subscriber: Subscriber, seconds: float) -> None:
        # nginx would collect the events and pass them on in groups.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(subscriber.messages(seconds), headers=headers)
        self._context, self._subscriber = context, subscriber

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.change_feed.drop(self._subscriber)


_AT = '"at_ms":1795000000000'
_CHANGE = f'event: change\ndata: {{{_AT},"topics":["job"],"job_ids":["0d3b8d0e4c1a4b0f8a5c6d7e8f9a0b1c"]}}\n\n'
_OPERATION = 'event: operation\ndata: {"id":"nightly-2026-11-21","kind":"SAVEPOINT","status":"COMPLETED"}\n\n'
_ENDS = {
    "away": {"summary": "The database does not answer; the stream goes on.", "value": "event: away\ndata: {}\n\n"},
    "gone": {"summary": "The job was deleted; the last event.", "value": "event: gone\ndata: {}\n\n"},
    "over": {
        "summary": "The token or session is no longer valid; the last event.",
        "value": "event: over\ndata: {}\n\n",
    },
}


def _event(names: Iterable[str], data: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema of an event with a name."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {
        "type": "object",
        "properties": {"event": {"enum": list(names)}, "data": text},
        "required": ["event", "data"],
    }


def _events(name: str, summary: str, example: str, data: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """Describes a stream of events, with an example of each."""
    events = {
        "itemSchema": {"anyOf": [_event([name], data), _event(_ENDS, {"type": "object", "maxProperties": 0})]},
        "examples": {name: {"summary": summary, "value": example}, **_ENDS},
    }
    return {200: {"description": "Server-sent events.", "content": {"text/event-stream": events}}}


_JOB_IDS = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
_CHANGES = {
    "type": "object",
    "properties": {
        "at_ms": {"type": "integer"},
        "topics": {"type": "array", "items": {"enum": list(Topic)}},
        "job_ids": _JOB_IDS,
    },
    "required": ["at_ms", "topics", "job_ids"],
}
_OF_CHANGES = _events("change", "Parts of jobs have changed.", _CHANGE, _CHANGES)
_OF_OPERATION = _events(
    "operation", "The operation, as GET shows it.", _OPERATION, {"$ref": "#/components/schemas/OperationAnswer"}
)


def _job(context: ContextOf, _: User, job_id: str) -> str:
    return jobs.id_of(context, job_id)


def _operation(context: ContextOf, _: User, operation_id: str) -> OperationAnswer:
    return operations.show(context, operation_id)


@router.get("/stream", status_code=200, response_class=EventStream, responses=_OF_CHANGES)
async def stream_all(context: ContextOf, user: User, request: Request, seconds: Seconds = SECONDS_MAX) -> EventStream:
    """Reports changes of the jobs in the user's scope: server-sent events.

    An event `change` names the topics (job, metrics) and the jobs, or null for very many. The first event comes
    immediately.
    """
    return EventStream(context, context.change_feed.open(Subject(), user, credential_of(request, user)), seconds)


@router.get("/jobs/{job_id}/stream", status_code=200, response_class=EventStream, responses=_OF_CHANGES)
async def stream_job(
    context: ContextOf, user: User, request: Request, job: Annotated[str, Depends(_job)], seconds: Seconds = SECONDS_MAX
) -> EventStream:
    """Reports changes of a job: server-sent events.

    An event `change` names the topics: job, metrics, checkpoints, operations, events. The first event comes
    immediately and names all topics. `gone`: the job was deleted; `over`: the token or session is no longer valid;
    `away`: the database does not answer.
    """
    subject = Subject(job_id=job)
    return EventStream(context, context.change_feed.open(subject, user, credential_of(request, user)), seconds)


@router.get("/operations/{operation_id}/stream", status_code=200, response_class=EventStream, responses=_OF_OPERATION)
async def stream_operation(
    context: ContextOf,
    user: User,
    request: Request,
    operation: Annotated[OperationAnswer, Depends(_operation)],
    seconds: Seconds = SECONDS_MAX,
) -> EventStream:
    """Shows the progress of an operation: server-sent events.

    Each event `operation` holds the answer of GET /operations/{operation_id}. The stream ends with the operation.
    """
    subject, present = Subject(operation_id=operation.id), operation.model_dump(mode="json")
    subscriber = context.change_feed.open(subject, user, credential_of(request, user), operation=present)
    return EventStream(context, subscriber, seconds)
