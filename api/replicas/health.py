"""The health of the control plane, its database and its object store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from keyscale.db.repositories import leaders
from keyscale.installation import VERSION

from ..errors import ApiError, DatabaseUnavailableError, LeaderMissingError, ReconcilerDownError, StoreUnavailableError

if TYPE_CHECKING:
    from ..control_plane.context import Context

_BEAT_AGE_MAX_S = 10.0


def check(context: Context) -> tuple[dict[str, Any], list[ApiError]]:
    """Checks every part.

    Returns:
        The version, the state of each part and the leader, and the errors of the parts that do not work.
    """
    found: list[ApiError] = []
    leader = None
    try:
        with context.reads() as session:
            seen = leaders.read(session)
    except SQLAlchemyError:
        found.append(DatabaseUnavailableError())
    else:
        if seen is not None and seen.is_there:
            leader = {"url": seen.url, "epoch": seen.epoch}
    if (reason := context.store.problem()) is not None:
        found.append(StoreUnavailableError(reason))
    if context.pulse.role == "down" or time.monotonic() - context.pulse.beat_at_s > _BEAT_AGE_MAX_S:
        found.append(ReconcilerDownError("the reconciler has not finished a round recently"))
    if leader is None:
        found.append(LeaderMissingError("no replica has led for a while"))
    codes = {error.code for error in found}
    return {
        "version": VERSION,
        "database": _state(DatabaseUnavailableError.code in codes),
        "store": _state(StoreUnavailableError.code in codes),
        "reconciler": _state(ReconcilerDownError.code in codes),
        "leader": leader,
        "isolation": context.launcher.isolation.why_not or "ok",
        "quotas": context.launcher.enclosures.means.statement,
    }, found


def _state(is_away: bool) -> str:
    return "unavailable" if is_away else "ok"
