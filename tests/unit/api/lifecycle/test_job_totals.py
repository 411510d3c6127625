"""What is known of a job before an attempt is what its last driver has reported."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.lifecycle import job_totals
from keyscale.api.lifecycle.job_totals import known_before, totals_before
from keyscale.db.models import Attempt
from keyscale.jobs.protocol.messages import DriverMetrics

SESSION: Any = None
SERIES = {"operator": "count", "name": "n", "kind": "counter", "labels": {}, "values": [3]}
EARLIER = {**SERIES, "values": [2]}
BEFORE = {
    "input_records": 100,
    "lost_records": 20,
    "user": [EARLIER],
    "lag_records": 7,
    "lag_records_at_ms": 50,
}


@pytest.mark.parametrize(
    ("reported", "earlier", "expected"),
    [
        (
            {"input_records": 5, "lost_records": 3, "pending_records": 9, "lag_age_ms": 30,
             "counters": {"input_records": 130, "user": [SERIES]}},
            BEFORE,
            {"input_records": 130, "lost_records": 23, "user": [SERIES], "lag_records": 9, "lag_records_at_ms": 970},
        ),
        (
            {"input_records": 5, "lost_records": 3},
            BEFORE,
            {"input_records": 105, "lost_records": 23, "user": [EARLIER], "lag_records": 7, "lag_records_at_ms": 50},
        ),
        (
            {"input_records": 5, "counters": {"input_records": 90, "user": []}},
            BEFORE,
            {"input_records": 100, "lost_records": 20, "user": [], "lag_records": 7, "lag_records_at_ms": 50},
        ),
        ({"input_records": 5}, None, {"input_records": 5, "lost_records": 0, "user": []}),
        (None, BEFORE, {"input_records": 0, "lost_records": 0, "user": []}),
    ],
    ids=["as reported", "not restored", "behind what is known", "the first attempt", "no driver has reported"],
)  # fmt: skip
def test_the_counters_and_the_backlog_before_an_attempt_are_those_of_the_last_report(
    monkeypatch: pytest.MonkeyPatch,
    reported: dict[str, Any] | None,
    earlier: dict[str, Any] | None,
    expected: dict[str, Any],
) -> None:
    before = None
    if reported is not None:
        metrics = DriverMetrics.model_validate(reported).model_dump()
        before = Attempt(metrics=metrics, totals_before=earlier, heartbeat_at_ms=1000)
    monkeypatch.setattr(job_totals.attempts, "counted_before", lambda _, *of: {("job", 4): before}[of])
    known = known_before(SESSION, "job", 4)
    known["user"] = [{name: each[name] for name in SERIES} for each in known["user"]]
    assert {name: known[name] for name in expected} == expected
    assert ("lag_records" in known) is ("lag_records" in expected)
    told = totals_before(SESSION, "job", 4)
    assert (told["input_records"], told["lost_records"]) == (expected["input_records"], expected["lost_records"])
    assert set(known) - set(told) == set(expected) & {"lag_records", "lag_records_at_ms"}
