"""Parameters that several routes take.

They are the control plane, and a limit of list lengths.

They do not wait, and so are `async`: FastAPI calls other dependencies in a thread, which costs more.
"""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from ..shapes import NUMBER_MAX
from .context import Context
from .cursors import Listing


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextOf = Annotated[Context, Depends(_context)]
Limit = Annotated[int, Query(ge=1, le=1000, description="The longest list to return.")]
After = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="The `next` of the answer before.",
        json_schema_extra={"pattern": "^[A-Za-z0-9_-]+$"},
    ),
]


async def _listing(limit: Limit = 100, after: After = None) -> Listing:
    return Listing(limit, after)


ListingOf = Annotated[Listing, Depends(_listing)]

CheckpointNumber = Annotated[int, Path(ge=1, le=NUMBER_MAX)]
DryRun = Annotated[bool, Query(description="Only show the effects.")]
AttemptNumber = Annotated[
    int | None, Query(ge=1, le=NUMBER_MAX, description="Default: the attempt that runs the job, or ran it last.")
]
