"""Rows of the control plane's database as JSON, to be played into another database at another time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from keyscale.clock import now_ms
from keyscale.db.repositories import series
from keyscale.db.repositories.series import RETENTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sqlalchemy.orm import Session

TABLES = (
    "artifacts",
    "artifact_chunks",
    "jobs",
    "revisions",
    "attempts",
    "heartbeats",
    "operations",
    "checkpoints",
    "checkpoint_subtasks",
    "exceptions",
    "events",
    "series_points",
)
"""The tables of jobs, in an order in which rows find the rows that they refer to."""
GIVEN_BY_DATABASE = {
    ("jobs", "user_number"),
    ("events", "id"),
    ("exceptions", "id"),
    ("revisions", "artifact_id"),
    ("revisions", "libraries"),
}
SECRET = {("attempts", "token_sha256")}
_SHOWN = "checkpoint_id IN (SELECT checkpoint_id FROM checkpoints WHERE job_id = t.job_id ORDER BY 1 DESC LIMIT 12)"
_SAVEPOINT = "checkpoint_id IN (SELECT checkpoint_id FROM checkpoints WHERE job_id = t.job_id AND is_savepoint)"
_NEWEST = (
    "at_ms IN (SELECT at_ms FROM series_points WHERE job_id = t.job_id AND step_ms = t.step_ms"
    " ORDER BY 1 DESC LIMIT 40)"
)
RECORDED = {
    "checkpoints": f"{_SHOWN} OR {_SAVEPOINT}",
    "checkpoint_subtasks": f"{_SHOWN} OR {_SAVEPOINT}",
    "events": "job_id IS NOT NULL",
    "series_points": f"step_ms = {RETENTIONS[0].step_ms} AND {_NEWEST}",
}
"""Which rows of a table are recorded; by default all of them."""
_NEAR_MS = 24 * 3_600_000
"""A whole number that is so near to the time of the recording is a time."""

Rows = dict[str, list[dict[str, Any]]]


def read_rows(session: Session, renamed: Mapping[str, str]) -> dict[str, Any]:
    """Returns a recording: its time, and the rows by table.

    Args:
        session: The database.
        renamed: Names of the machine and of its directories, and what the recording calls them.
    """
    rows: Rows = {}
    for table in TABLES:
        query = f"SELECT to_jsonb(t) FROM {table} t WHERE {RECORDED.get(table, 'true')} ORDER BY 1"  # noqa: S608 - of our own names
        rows[table] = [
            {name: value for name, value in row.items() if (table, name) not in GIVEN_BY_DATABASE | SECRET}
            for row in session.scalars(text(query))
        ]
    for attempt in rows["attempts"]:
        place = attempt["launched_on"]
        attempt |= {"host": "host", "launched_on": place and f"host:{place.partition(':')[2]}"}
    content = json.dumps({"at_ms": now_ms(), "rows": rows})
    for name, other in renamed.items():
        content = content.replace(name, other)
    recording: dict[str, Any] = json.loads(content)
    return recording


def write_recording(file: Path, recording: Mapping[str, Any]) -> None:
    """Writes a recording, one row a line."""
    parts = []
    for table, rows in recording["rows"].items():
        lines = ",\n".join(json.dumps(row, ensure_ascii=False, sort_keys=True) for row in rows)
        parts.append(f'"{table}": [\n{lines}\n]')
    content = ",\n".join(parts)
    file.write_text(f'{{"at_ms": {recording["at_ms"]}, "rows": {{\n{content}\n}}}}\n', encoding="utf-8")


def play(session: Session, file: Path) -> None:
    """Inserts the rows of a recording, with their times moved as if the recording ended now."""
    recording = json.loads(file.read_text(encoding="utf-8"))
    at_ms = recording["at_ms"]
    rows: Rows = _moved(recording["rows"], at_ms, now_ms() - at_ms)
    for table, of_table in rows.items():
        if not of_table:
            continue
        if table == "series_points":
            _play_points(session, of_table)
            continue
        names = ", ".join(of_table[0])
        insert = f"INSERT INTO {table} ({names}) SELECT {names} FROM json_populate_recordset(null::{table}, :rows)"  # noqa: S608 - of our own names
        session.execute(text(insert), {"rows": json.dumps(of_table)})


def _play_points(session: Session, points: list[dict[str, Any]]) -> None:
    """Stores points anew: their places in the retentions follow from their times."""
    for point in sorted(points, key=lambda one: one["at_ms"]):
        values = {name: point[name] for name in series.COLUMNS}
        series.store(session, point["job_id"], point["at_ms"], values)


def _moved(value: Any, at_ms: int, by_ms: int) -> Any:
    if isinstance(value, dict):
        return {name: _moved(each, at_ms, by_ms) for name, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, at_ms, by_ms) for each in value]
    is_time = isinstance(value, int) and abs(value - at_ms) < _NEAR_MS
    return value + by_ms if is_time else value
