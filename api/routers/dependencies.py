"""What routes ask for beside the request itself."""

from typing import Annotated

from fastapi import Depends, Query, Request

from api.context import Context


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Control = Annotated[Context, Depends(_context)]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
