from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from api.errors import ApiError, DatabaseUnavailableError, ReconcilerDownError, StoreUnavailableError
from api.problems import problem

if TYPE_CHECKING:
    from api.context import Context

_BEAT_AGE_MAX_S = 30.0


def show(context: Context) -> JSONResponse:
    """Looks at every part; 503 with the first one's problem if one does not work."""
    found: list[ApiError] = []
    try:
        with context.engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        found.append(DatabaseUnavailableError())
    if (what := context.store.problem()) is not None:
        found.append(StoreUnavailableError(what))
    if context.pulse.role == "down" or time.monotonic() - context.pulse.beat_at_s > _BEAT_AGE_MAX_S:
        found.append(ReconcilerDownError("no round was finished lately"))
    codes = {error.code for error in found}
    parts = {
        "database": _state(DatabaseUnavailableError.code in codes),
        "store": _state(StoreUnavailableError.code in codes),
        "reconciler": _state(ReconcilerDownError.code in codes),
    }
    if found:
        return problem(found[0], **parts)
    return JSONResponse({"status": "ok", **parts, "role": context.pulse.role})


def _state(is_away: bool) -> str:
    return "unavailable" if is_away else "ok"
