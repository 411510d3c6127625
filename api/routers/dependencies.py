"""Parameters that several routes take: the control plane, and a limit of list lengths."""

from typing import Annotated

from fastapi import Depends, Query, Request

from keyscale.api.services.context import Context


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Control = Annotated[Context, Depends(_context)]
Limit = Annotated[int, Query(ge=1, le=1000, description="The longest list to return.")]
