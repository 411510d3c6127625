"""An export is all parts of one list."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.control_plane.cursors import Listing
from keyscale.api.events import event_export as service
from keyscale.api.events.event_export import EVENTS_AT_ONCE, ExportFormat
from keyscale.api.events.schemas import EventAnswer, EventList
from keyscale.db.repositories.events import EventFilter
from keyscale.vocabulary import Role

USER = Principal("id", "ann", Role.VIEWER)
CHOSEN = EventFilter(frozenset({"JOB_CREATED"}), "ann", 5, 9, with_refusals=False)
PARTS = 3


@pytest.mark.parametrize("form", ExportFormat)
def test_each_part_of_an_export_is_of_the_same_events(monkeypatch: pytest.MonkeyPatch, form: ExportFormat) -> None:
    context: Any = object()
    asked: list[Listing] = []

    def list_events(*given: Any) -> EventList:
        *whole, listing, chosen = given
        assert (whole, chosen) == ([context, USER, "flights"], CHOSEN)
        asked.append(listing)
        part = len(asked)
        event = EventAnswer.model_construct(**{**dict.fromkeys(EventAnswer.model_fields), "id": part})
        return EventList(events=[event], next=f"after {part}" if part < PARTS else None)

    monkeypatch.setattr(service, "list_events", list_events)
    lines = "".join(service.exported(context, USER, "flights", CHOSEN, form)).splitlines()
    assert asked == [Listing(EVENTS_AT_ONCE, after) for after in (None, "after 1", "after 2")]
    if form is ExportFormat.NDJSON:
        assert [json.loads(line)["id"] for line in lines] == [1, 2, 3]
    else:
        assert [line.partition(",")[0] for line in lines] == ["id", "1", "2", "3"]


def test_an_export_asks_for_its_first_part_before_its_answer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_events(*_: Any) -> EventList:
        raise TimeoutError

    monkeypatch.setattr(service, "list_events", list_events)
    context: Any = object()
    with pytest.raises(TimeoutError):
        service.exported(context, USER, None, CHOSEN, ExportFormat.NDJSON)
