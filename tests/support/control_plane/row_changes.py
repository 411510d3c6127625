"""What an action changes in the database, as short lines: each changed column of each row, and each new row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from keyscale.clock import now_ms
from keyscale.db.models import (
    Attempt,
    Checkpoint,
    Event,
    Job,
    JobException,
    LastHeartbeat,
    Operation,
    Revision,
    SeriesPoint,
)
from keyscale.db.repositories.series import DAYS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.base import Base

_NAMES: dict[type[Base], str] = {
    Job: "job",
    Revision: "revision",
    Attempt: "attempt",
    LastHeartbeat: "heartbeat",
    Operation: "operation",
    Checkpoint: "checkpoint",
    JobException: "exception",
    SeriesPoint: "day",
    Event: "event",
}
_NUMBERS = {"heartbeat": "attempt", "attempt": "number", "revision": "number", "checkpoint": "checkpoint_id"}
"""The column that names a row, if it is not `id`."""
_NAMELESS = {"exception", "day"}
_UNSHOWN = {"id", "job_id", "number", "request_id", "token_sha256", "step_ms", "slot"}
"""Columns that name a row, or that are chosen at random."""
_MINUTE_MS = 60_000
_SOON_MS = 86_400_000

Rows = dict[tuple[Any, ...], dict[str, Any]]
"""The rows by the names of their tables and their keys."""


class RowChanges:
    """Compares the rows of jobs with the rows of before.

    Args:
        session: The transaction of the action.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before = self._read()

    def lines(self) -> list[str]:
        """Returns the changes since the beginning.

        A time of this minute is `now`, a failure is its code, and new rows lack the values that are empty.
        """
        after = self._read()
        assert self._before.keys() <= after.keys(), "no action deletes a row"
        return [line for key, row in after.items() if (line := self._line(key, row))]

    def _line(self, key: tuple[Any, ...], row: Mapping[str, Any]) -> str | None:
        before = self._before.get(key)
        if before is None:
            return _event(row) if key[0] == "event" else f"new {_name(key[0], row)}: {_listed(row, only_full=True)}"
        changed = {column: value for column, value in row.items() if value != before[column]}
        return f"{_name(key[0], row)}: {_listed(changed)}" if changed else None

    def _read(self) -> Rows:
        self._session.flush()
        self._session.expire_all()
        found: Rows = {}
        for table, name in _NAMES.items():
            keys = table.__table__.primary_key.columns
            rows = select(*table.__table__.columns).order_by(*keys)
            for row in self._session.execute(rows).mappings():
                if row.get("step_ms", DAYS.step_ms) == DAYS.step_ms:
                    found[(name, *(row[key.name] for key in keys))] = dict(row)
        return found


def _name(table: str, row: Mapping[str, Any]) -> str:
    owner = row.get("job_id", "mine")
    number = "" if table in _NAMELESS else f" {row[_NUMBERS.get(table, 'id')]}"
    return f"{table}{number}" + ("" if owner == "mine" else f" of {owner}")


def _event(row: Mapping[str, Any]) -> str:
    at = "" if _shown(row["at_ms"]) == "now" else f" at {row['at_ms']}"
    owner = "" if row["job_id"] == "mine" else f" of {row['job_id']}"
    return f"event {row['kind']}{owner} by {row['actor']}{at}: {row['message']} {_shown(row['details'])}"


def _listed(row: Mapping[str, Any], *, only_full: bool = False) -> str:
    unshown = _UNSHOWN | {"at_ms"} if "step_ms" in row else _UNSHOWN  # a day's time is its beginning
    shown = {name: value for name, value in row.items() if name not in unshown and (value or not only_full)}
    return ", ".join(f"{name} {_shown(value)}" for name, value in shown.items())


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, dict):
        return _document(value)
    if isinstance(value, int) and 0 <= (later_ms := value - now_ms() + _MINUTE_MS) < _SOON_MS:
        return f"in {later_ms // _MINUTE_MS} min" if later_ms > 2 * _MINUTE_MS else "now"
    return str(value)


def _document(value: Mapping[str, Any]) -> str:
    if "code" in value:
        return str(value["code"])
    if "artifact_id" in value:
        return f"of parallelism {value['parallelism']}"
    if "phase" in value and "started_at_ms" in value:
        waits = f" waits for {_shown(value['waits_for'])}" if "waits_for" in value else ""
        return f"{value['phase']} {_shown(value['started_at_ms'])} to {_shown(value['ended_at_ms'])}{waits}"
    return "{" + ", ".join(f"{name}: {_shown(value[name])}" for name in sorted(value) if value[name]) + "}"
