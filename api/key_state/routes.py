"""The routes of the state of a key."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Discriminator, Tag

from ..access.identities import Operator
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import changed_keys, key_state
from .schemas import (
    ChangedKeyAnswer,
    ChangedKeysAnswer,
    KeyChangeRequest,
    KeyChangesRequest,
    KeyHistoryAnswer,
    KeyStateAnswer,
)

router = APIRouter(prefix="/jobs/{job_id}", tags=["state"], route_class=GuardedRoute)

Key = Annotated[
    str, Query(max_length=10_000, description="The key: the text of its only column, or a JSON list of its columns.")
]
At = Annotated[
    str,
    Query(
        pattern=r"^(latest|checkpoint|(batch|time)-[0-9]{1,18})$",
        description="`latest`: after the last committed batch. `checkpoint`: in the latest checkpoint. `batch-N`: after"
        " batch N. `time-MS`: after the last batch that was committed by that time, in milliseconds since the epoch.",
    ),
]
After = Annotated[
    str | None,
    Query(
        pattern=r"^([A-Za-z0-9._-]{1,249}/[0-9]{1,9}/)?[0-9]{1,18}$",
        description="Wait until the job has committed this batch, or a record of Kafka as `topic/partition/offset`, for"
        " 30 seconds at most.",
    ),
]


def _form(request: Any) -> str:
    has_list = "changes" in request if isinstance(request, dict) else isinstance(request, KeyChangesRequest)
    return "keys" if has_list else "key"


Changes = Annotated[
    Annotated[KeyChangeRequest, Tag("key")] | Annotated[KeyChangesRequest, Tag("keys")], Discriminator(_form)
]


@router.get("/state-history/{operator}")
def show_key_history(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf, user: Operator, job_id: str, operator: str, key: Key, state: str | None = None
) -> KeyHistoryAnswer:
    """Shows the changes of a key in a job's stored batches.

    A batch is stored until a checkpoint has replaced it.
    """
    return key_state.show_history(context, user, job_id, operator, key, state=state)


@router.get("/state/{operator}")
def show_key_of_operator(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf,
    user: Operator,
    job_id: str,
    operator: str,
    key: Key,
    at: At = "latest",
    after: After = None,
) -> KeyStateAnswer:
    """Shows all states and timers of a key of an operator."""
    return key_state.show_key(context, user, job_id, operator, key, at=at, after=after)


@router.get("/state/{operator}/{state}")
def show_key(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf,
    user: Operator,
    job_id: str,
    operator: str,
    state: str,
    key: Key,
    at: At = "latest",
    after: After = None,
) -> KeyStateAnswer:
    """Shows a key's state, exactly as after one committed batch.

    No driver is needed: the state is read from the latest snapshot and the changelogs after it.
    """
    return key_state.show_key(context, user, job_id, operator, key, state=state, at=at, after=after)


@router.post("/state-changes", status_code=201)
def change_key_state(
    context: ContextOf, user: Operator, job_id: str, request: Changes
) -> ChangedKeyAnswer | ChangedKeysAnswer:
    """Sets or deletes the state of keys in a savepoint.

    The body is one change, or has a list of `changes`, which take effect in one savepoint.
    The job's history stays as it is until the job starts from the savepoint.
    """
    return changed_keys.change(context, user, job_id, request)
