"""The health of the control plane and of the database and object store that it needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from keyscale.api.errors import ApiError, DatabaseUnavailableError, ReconcilerDownError, StoreUnavailableError
from keyscale.installation import VERSION

if TYPE_CHECKING:
    from keyscale.api.services.context import Context

_BEAT_AGE_MAX_S = 30.0


def look(context: Context) -> tuple[dict[str, str], list[ApiError]]:
    """Looks at every part.

    Returns:
        The version and the state of each part, and the errors of the parts that do not work.
    """
    found: list[ApiError] = []
    try:
        with context.engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        found.append(DatabaseUnavailableError())
    if (reason := context.store.problem()) is not None:
        found.append(StoreUnavailableError(reason))
    if context.pulse.role == "down" or time.monotonic() - context.pulse.beat_at_s > _BEAT_AGE_MAX_S:
        found.append(ReconcilerDownError("the reconciler has not finished a round recently"))
    codes = {error.code for error in found}
    return {
        "version": VERSION,
        "database": _state(DatabaseUnavailableError.code in codes),
        "store": _state(StoreUnavailableError.code in codes),
        "reconciler": _state(ReconcilerDownError.code in codes),
    }, found


def _state(is_away: bool) -> str:
    return "unavailable" if is_away else "ok"
