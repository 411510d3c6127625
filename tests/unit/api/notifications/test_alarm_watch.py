"""An alarm begins and ends with one event each."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.notifications import alarm_watch
from keyscale.api.notifications.alarm_watch import AlarmWatch
from keyscale.vocabulary import NotificationKind

AWAY, LOST = NotificationKind.STORE_AWAY, NotificationKind.RECORDS_LOST


class Watched:
    """One job with its alarms, in place of a database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alarms: set[tuple[str, str]] = set()
        self.events: list[str] = []
        self.present: dict[NotificationKind, str] = {}
        self.is_known, self.reports = True, True
        job = SimpleNamespace(id="job")
        monkeypatch.setattr(alarm_watch, "shared_now_ms", lambda: 7)
        monkeypatch.setattr(alarm_watch, "alarms_of", lambda *_: self.present)
        monkeypatch.setattr(alarm_watch, "can_have_ended", lambda *_: self.reports)
        monkeypatch.setattr(alarm_watch.scrapes, "of_scope", lambda *_, **__: [job])
        monkeypatch.setattr(alarm_watch.jobs, "lock", lambda *_: job if self.is_known else None)
        monkeypatch.setattr(alarm_watch.alarms, "of_all_jobs", lambda _: set(self.alarms))
        monkeypatch.setattr(alarm_watch.alarms, "begin", lambda _, *key: self.alarms.add(key[:2]))
        monkeypatch.setattr(alarm_watch.alarms, "end", lambda _, *key: self.alarms.remove(key))
        monkeypatch.setattr(alarm_watch.events, "record", lambda _, *, kind, **__: self.events.append(kind))
        self._leadership: Any = SimpleNamespace(transaction=lambda: nullcontext(None))

    def look(self, **facts: Any) -> list[str]:
        """Looks at the job with new facts; returns the events."""
        for name, value in facts.items():
            setattr(self, name, value)
        self.events = []
        unused: Any = None
        AlarmWatch(unused, unused).poll(self._leadership)
        return self.events


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_an_alarm_that_lasts_is_reported_once_when_it_begins_and_once_when_it_ends(watched: Watched) -> None:
    assert watched.look(present={AWAY: "batches wait"}) == [AWAY]
    assert watched.look() == []
    assert watched.look(present={}) == [f"{AWAY}_ENDED"]
    assert watched.look() == []


def test_an_alarm_lasts_while_its_job_does_not_report(watched: Watched) -> None:
    watched.look(present={AWAY: "batches wait"})
    assert watched.look(present={}, reports=False) == []
    assert watched.look(reports=True) == [f"{AWAY}_ENDED"]


def test_a_loss_is_reported_again_when_it_happens_again_and_its_end_is_no_event(watched: Watched) -> None:
    assert watched.look(present={LOST: "3 records"}) == [LOST]
    assert watched.look(present={}) == []
    assert watched.look(present={LOST: "4 records"}) == [LOST]


def test_a_job_that_was_deleted_meanwhile_has_no_alarm(watched: Watched) -> None:
    assert watched.look(present={AWAY: "batches wait"}, is_known=False) == []
    assert watched.alarms == set()
