"""The downtime of a change begins when the job stops processing, and a job without input was not stopped by that."""

from __future__ import annotations

import pytest

from keyscale.api.lifecycle.ledger import stopped_at_ms
from keyscale.db.models import Attempt

PHASES = [{"phase": "REQUESTED", "started_at_ms": 60_000}, {"phase": "SAVEPOINT", "started_at_ms": 100_000}]


@pytest.mark.parametrize(
    ("last_commit_at_ms", "waits_for_input", "expected"),
    [
        pytest.param(99_000, False, 99_000, id="busy"),
        pytest.param(101_500, False, 101_500, id="a last batch before the savepoint"),
        pytest.param(92_000, True, 100_000, id="without input for a while"),
        pytest.param(101_500, True, 101_500, id="without input after a last batch"),
        pytest.param(40_000, False, 100_000, id="without a batch for long"),
        pytest.param(None, False, 100_000, id="without any batch"),
    ],
)
def test_a_job_stops_processing_at_its_last_batch_or_when_it_is_told_to(
    last_commit_at_ms: int | None, waits_for_input: bool, expected: int
) -> None:
    old = Attempt(last_commit_at_ms=last_commit_at_ms, metrics={"waits_for_input": waits_for_input})
    assert stopped_at_ms(old, PHASES, 105_000) == expected


def test_a_job_that_no_savepoint_stops_is_stopped_by_its_end() -> None:
    assert stopped_at_ms(Attempt(last_commit_at_ms=None, metrics=None), PHASES[:1], 105_000) == 105_000
