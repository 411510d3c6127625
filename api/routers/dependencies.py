"""Parameters that several routes take: the control plane, and a limit of list lengths."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from keyscale.api.services.context import Context


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Control = Annotated[Context, Depends(_context)]
Limit = Annotated[int, Query(ge=1, le=1000, description="The longest list to return.")]

NUMBER_MAX = (1 << 63) - 1
"""The largest number that a column holds."""
CheckpointNumber = Annotated[int, Path(ge=1, le=NUMBER_MAX)]
AttemptNumber = Annotated[int | None, Query(ge=1, le=NUMBER_MAX, description="Default: the latest one.")]
