"""Each part of the history is kept as its own policy says, and is removed a few rows at a time."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.api.maintenance import history_retention
from keyscale.api.maintenance.history_retention import (
    DELIVERIES_KEPT,
    DIAGNOSTIC_AGE_MS,
    REFUSALS_KEPT,
    HistoryPolicy,
    HistoryRetention,
)

DAY_MS = 86_400_000
NOW_MS = 1000 * DAY_MS
POLICY = HistoryPolicy(
    checkpoints=11, detailed_checkpoints=12, attempts=13, operations=14, event_days=15, events=16
)  # fmt: skip
KEPT = {
    "remove_attempts": {"keep": 13},
    "remove_operations": {"keep": 14},
    "remove_subtasks": {"keep": 12},
    "remove_checkpoints": {"keep": 11},
    "remove_old": {"before_ms": NOW_MS - DIAGNOSTIC_AGE_MS},
    "remove_events": {"before_ms": NOW_MS - 15 * DAY_MS},
    "remove_most_events": {"keep": 16},
    "remove_refusals": {"keep": REFUSALS_KEPT},
}
"""What each removal of the repositories is to keep."""
OF_JOB = {"remove_attempts", "remove_operations", "remove_subtasks", "remove_checkpoints"}


class Rows:
    """The rows of two jobs that are too old, by the removal that finds them; each call removes at most two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.old: Counter[tuple[str, ...]] = Counter()
        self.deliveries = 0
        self.called: list[tuple[str, ...]] = []
        self.events: list[dict[str, Any]] = []
        self.after_call = lambda: None
        monkeypatch.setattr(history_retention, "ROWS_AT_ONCE", 2)
        monkeypatch.setattr(history_retention, "PAUSE_S", 0)
        monkeypatch.setattr(history_retention, "now_ms", lambda: NOW_MS)
        monkeypatch.setattr(history_retention.jobs, "ids", lambda _: ["a", "b"])
        monkeypatch.setattr(history_retention.events, "record", lambda _, **event: self.events.append(event))
        monkeypatch.setattr(history_retention.subscriptions, "remove_deliveries", self._remove_deliveries)
        for name in KEPT:
            repository = history_retention.diagnostics if name == "remove_old" else history_retention.history
            monkeypatch.setattr(repository, name, self._removal(name))
        unused: Any = None
        self.retention = HistoryRetention(unused, unused, POLICY)

    def _removal(self, name: str) -> Any:
        def remove(_: Any, *job: str, some: int, **kept: int) -> int:
            assert (len(job), some, kept) == (name in OF_JOB, 2, KEPT[name])
            gone = min(self.old[name, *job], some)
            self.old[name, *job] -= gone
            self.called.append((name, *job))
            self.after_call()
            return gone

        return remove

    def _remove_deliveries(self, _: Any, *, keep: int) -> int:
        assert keep == DELIVERIES_KEPT
        return self.deliveries

    def run(self) -> Counter[str]:
        return self.retention.run(cast("Any", SimpleNamespace(transaction=lambda: nullcontext(None))))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    return Rows(monkeypatch)


def test_a_pass_removes_all_that_is_too_old_and_reports_it_by_table(rows: Rows) -> None:
    of_jobs = [(name, job) for job in "ab" for name in sorted(OF_JOB)]
    rows.old.update({key: number for number, key in enumerate(of_jobs, start=1)})
    rows.old.update({(name,): 5 for name in KEPT if name not in OF_JOB})
    rows.deliveries = 3
    removed = rows.run()
    assert +rows.old == Counter()
    expected = {
        "attempts": 1 + 5,
        "operations": 3 + 7,
        "checkpoint_subtasks": 4 + 8,
        "checkpoints": 2 + 6,
        "diagnostics": 5,
        "events": 5 + 5,
        "refusals": 5,
        "deliveries": 3,
    }
    assert removed == expected
    [told] = rows.events
    assert (told["kind"], told["job_id"], told["at_ms"], told["rows"]) == ("HISTORY_REMOVED", None, NOW_MS, expected)
    assert told["message"].endswith(", ".join(f"{number} of {table}" for table, number in expected.items()))
    assert rows.called.count(("remove_attempts", "b")) == 3, "two rows a call, until a call finds fewer"


def test_a_pass_reports_only_the_tables_of_which_it_has_removed_rows(rows: Rows) -> None:
    assert (rows.run().total(), rows.events) == (0, [])
    assert rows.called == [(name, job) for job in "ab" for name in KEPT if name in OF_JOB] + [
        (name,) for name in KEPT if name not in OF_JOB
    ]
    rows.old["remove_events",] = 1
    rows.run()
    assert (rows.events[0]["rows"], len(rows.events)) == ({"events": 1}, 1)


def test_a_pass_that_is_closed_ends_after_the_rows_in_hand(rows: Rows) -> None:
    rows.old["remove_attempts", "a"] = 9
    rows.after_call = rows.retention._closing.set
    assert rows.run()["attempts"] == 2
    assert rows.called == [("remove_attempts", "a")]
