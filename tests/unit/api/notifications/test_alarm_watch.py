"""An alarm begins and ends with one event each."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.api.health.faults import FAULT_REPORT
from keyscale.api.metrics.scrape import JOBS_MAX
from keyscale.api.notifications import alarm_watch
from keyscale.api.notifications.alarm_watch import AlarmWatch
from keyscale.db.job_scope import EVERYTHING
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


class Jobs:
    """Two jobs with alarms of their own, and what becomes of the alarms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[Any] = []
        self.present: dict[str, dict[NotificationKind, str]] = {"a": {AWAY: "batches wait"}, "b": {}}
        self.known: set[tuple[str, NotificationKind]] = {("a", LOST), ("b", AWAY), ("b", LOST)}
        self.silent = {"a"}
        found = [SimpleNamespace(id=name) for name in self.present]
        functions: dict[Any, dict[str, Any]] = {
            alarm_watch: {
                "shared_now_ms": lambda: 7,
                "alarms_of": lambda job, at_ms: {7: self.present[job.id]}[at_ms],
                "can_have_ended": lambda job, at_ms: at_ms == 7 and job.id not in self.silent,
            },
            alarm_watch.scrapes: {"of_scope": lambda _, *of, **more: self.noted.append((*of, more)) or found},
            alarm_watch.jobs: {"lock": lambda _, job_id: self.noted.append(f"{job_id} locked") or job_id},
            alarm_watch.alarms: {
                "of_all_jobs": lambda _: self.known,
                "begin": lambda _, *key: self.noted.append(("begun", *key)),
                "end": lambda _, *key: self.noted.append(("ended", *key)),
            },
            alarm_watch.events: {"record": lambda _, **event: self.noted.append(event)},
        }
        for module, replaced in functions.items():
            for name, function in replaced.items():
                monkeypatch.setattr(module, name, function)


def test_each_alarm_is_of_its_own_job_and_is_told_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, unused = Jobs(monkeypatch), cast("Any", None)
    leadership: Any = SimpleNamespace(transaction=lambda: nullcontext(None))
    assert not AlarmWatch(unused, unused).work(leadership)
    assert jobs.noted[0] == (EVERYTHING, {"limit": JOBS_MAX, "report": FAULT_REPORT})
    over = "over: store away"
    assert jobs.noted[1:4] == [
        "a locked",
        ("begun", "a", AWAY, 7),
        {"job_id": "a", "at_ms": 7, "kind": AWAY, "message": "batches wait"},
    ]
    ended = [("ended", "b", kind) for kind in NotificationKind if kind in {LOST, AWAY}]
    assert [each for each in jobs.noted[4:] if isinstance(each, tuple)] == ended
    assert [each for each in jobs.noted[4:] if isinstance(each, dict)] == [
        {"job_id": "b", "at_ms": 7, "kind": f"{AWAY}_ENDED", "message": over}
    ]
