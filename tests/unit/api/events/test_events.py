"""A user sees the events of the own scope, and only an administrator sees from where they came."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from keyscale.api.access.principal import Principal
from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.events import events as service
from keyscale.api.events import routes
from keyscale.api.events.schemas import EventAnswer
from keyscale.db.job_scope import JobScope
from keyscale.db.repositories.events import EventFilter
from keyscale.vocabulary import Role
from tests.support.coroutines import run_coroutine

CHOSEN = EventFilter(frozenset({"JOB_CREATED"}), "ann", 5, 9, with_refusals=False)
OWN = JobScope(labels={"team": "a"})
ROW = {
    "id": 7,
    "job_id": "job",
    "at_ms": 8,
    "kind": "JOB_CREATED",
    "actor": "ann",
    "actor_id": "id-of-ann",
    "message": "created",
    "details": {"a": 1},
    "request_id": "the-request",
    "address": "10.0.0.7",
}


class Rows:
    """The events of a database that has the job `flights`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.context: Any = SimpleNamespace(reads=lambda: nullcontext("session"))
        monkeypatch.setattr(service.jobs, "find_id", lambda _, name: {"flights": "job"}.get(name))
        monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
        monkeypatch.setattr(service.events, "list_page", self.list_page)

    def list_page(self, session: str, job_id: str | None, page: Any, **chosen: Any) -> Any:
        assert session == "session"
        self.asked.append((job_id, page.limit, page.after, chosen))
        return SimpleNamespace(rows=[SimpleNamespace(**ROW)], next=(7,))


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("reference", "job_id"), [("flights", "job"), ("id-of-a-deleted-job", "id-of-a-deleted-job"), (None, None)]
)
def test_a_list_is_of_a_job_or_of_the_scope_and_hides_addresses(
    monkeypatch: pytest.MonkeyPatch, role: Role, reference: str | None, job_id: str | None
) -> None:
    rows, user = Rows(monkeypatch), Principal("id", "ann", role, OWN)
    found = service.list_events(rows.context, user, reference, Listing(2, write_cursor((9,))), CHOSEN)
    is_admin = role is Role.ADMIN
    assert rows.asked == [(job_id, 2, (9,), {"scope": OWN, "with_access": is_admin, "chosen": CHOSEN})]
    shown = {name: value for name, value in ROW.items() if name in EventAnswer.model_fields}
    address = "10.0.0.7" if is_admin else None
    assert [event.model_dump(mode="json") for event in found.events] == [{**shown, "address": address}]
    assert found.next == write_cursor((7,))


def test_the_events_of_a_job_are_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, user = Rows(monkeypatch), Principal("id", "ann", Role.VIEWER, OWN)
    service.list_job_events(rows.context, user, "flights", Listing(2), CHOSEN)
    assert [asked[0] for asked in rows.asked] == ["job"]
    with pytest.raises(KeyError):
        service.list_job_events(rows.context, user, "id-of-a-deleted-job", Listing(2), CHOSEN)


def test_a_filter_has_its_kinds_its_actor_and_its_span() -> None:
    found = run_coroutine(routes._filter(["JOB_CREATED", "JOB_CREATED"], "ann", 5, 9))
    assert found == CHOSEN
    assert run_coroutine(routes._filter()) == EventFilter(frozenset(), None, None, None, with_refusals=False)
    assert routes._known("JOB_CREATED") == "JOB_CREATED"
    with pytest.raises(PydanticCustomError, match="no event has this kind"):
        routes._known("JOB_MADE")
