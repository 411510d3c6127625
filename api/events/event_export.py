"""Writes events as lines of JSON or CSV, however many there are."""

from __future__ import annotations

import csv
import io
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..control_plane.cursors import Listing
from .events import list_events
from .schemas import EventAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.db.repositories.events import EventFilter

    from ..access.principal import Principal
    from ..control_plane.context import Context

EVENTS_AT_ONCE = 1000


class ExportFormat(StrEnum):
    """The forms of an export."""

    NDJSON = "ndjson"
    CSV = "csv"

    @property
    def content_type(self) -> str:
        """The type of the answer's content."""
        return "application/x-ndjson" if self is ExportFormat.NDJSON else "text/csv; charset=utf-8"


def exported(
    context: Context, user: Principal, reference: str | None, chosen: EventFilter, form: ExportFormat
) -> Iterator[str]:
    """Returns all chosen events as text, part by part.

    It has the events that the user may see. The first part has been read when the call returns, so that a database that
    does not answer is an error.

    Args:
        context: The control plane.
        user: The user.
        reference: The job, which may be deleted; None for the whole scope.
        chosen: The events.
        form: The form of a line.
    """
    first = list_events(context, user, reference, Listing(EVENTS_AT_ONCE), chosen)

    def parts() -> Iterator[str]:
        found = first
        if form is ExportFormat.CSV:
            yield _csv_lines([list(EventAnswer.model_fields)])
        while True:
            rows = [event.model_dump(mode="json") for event in found.events]
            yield _csv_lines(map(_cells, rows)) if form is ExportFormat.CSV else _json_lines(rows)
            if found.next is None:
                return
            found = list_events(context, user, reference, Listing(EVENTS_AT_ONCE, found.next), chosen)

    return parts()


def _json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)


def _cells(row: dict[str, Any]) -> list[Any]:
    return [json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value for value in row.values()]


def _csv_lines(rows: Any) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()
