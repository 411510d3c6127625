"""A change is shown with the times of its own moments."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.lifecycle.ledger import metrics_of_change, prepared_ms
from keyscale.api.lifecycle.operation_results import described
from keyscale.api.lifecycle.requests import is_cancellable
from keyscale.api.schemas.change import ChangeAnswer
from keyscale.api.services.changes import change_answer
from keyscale.db.models import Operation
from keyscale.jobs.protocol.messages import DriverMetrics, OperatorMetrics
from keyscale.jobs.protocol.operations import ChangePhase, OperationKind, OperationStatus, UpgradeMode


def change(**columns: Any) -> Operation:
    given = {
        "id": "c",
        "job_id": "job",
        "kind": OperationKind.UPGRADE,
        "status": OperationStatus.IN_PROGRESS,
        "phase": ChangePhase.SAVEPOINT,
        "phases": [
            {"phase": "REQUESTED", "started_at_ms": 1000, "ended_at_ms": 1400},
            {"phase": "SAVEPOINT", "started_at_ms": 1400, "ended_at_ms": None},
        ],
        "from_revision": 1,
        "to_revision": 2,
        "from_parallelism": 3,
        "to_parallelism": 4,
        "upgrade_mode": UpgradeMode.SAVEPOINT,
        "allow_non_restored_state": False,
        "old_attempt": 5,
        "requested_at_ms": 1000,
    }
    return Operation(**{**given, **columns})


def test_durations_are_between_their_own_moments() -> None:
    shown = change_answer(
        change(stopped_at_ms=2000, resumed_at_ms=2300, ended_at_ms=4000, times={"restored_at_ms": 2100}), ChangeAnswer
    )
    assert (shown.duration_ms, shown.downtime_ms) == (3000, 300)
    assert [phase.duration_ms for phase in shown.phases] == [400, None]
    assert [(step.name, step.duration_ms) for step in shown.steps] == [("restore", 100)]
    unfinished = change_answer(change(stopped_at_ms=2000), ChangeAnswer)
    assert (unfinished.duration_ms, unfinished.downtime_ms) == (None, None)


def test_what_the_job_did_before_and_after_is_not_mixed_up() -> None:
    before, after = metrics_of_change({"batches": 1, "pending_records": 5}), metrics_of_change({"batches": 2})
    shown = change_answer(change(metrics_before=before, metrics_after=after), ChangeAnswer)
    assert shown.before is not None
    assert shown.after is not None
    assert (shown.before.lag_records, shown.after.lag_records) == (5, None)


@pytest.mark.parametrize(
    ("columns", "can_cancel"),
    [
        ({}, True),
        ({"phase": ChangePhase.VERIFY}, True),
        ({"phase": ChangePhase.ROLL_BACK}, False),
        ({"status": OperationStatus.COMPLETED}, False),
        ({"status": OperationStatus.FAILED}, False),
    ],
)
def test_a_change_can_be_cancelled_once_until_it_goes_back_or_is_over(
    columns: dict[str, Any], can_cancel: bool
) -> None:
    assert is_cancellable(change(**columns)) is can_cancel
    assert change_answer(change(**columns), ChangeAnswer).can_cancel is can_cancel
    assert not change_answer(change(**columns, cancel_requested_at_ms=9), ChangeAnswer).can_cancel


def test_a_rescale_is_named_by_its_parallelism_and_any_other_change_by_its_revisions() -> None:
    assert described(change(kind=OperationKind.RESCALE)) == "rescale from 3 to 4"
    assert described(change()) == "upgrade from revision 1 to 2"
    assert described(change(kind=OperationKind.ROLLBACK)) == "rollback from revision 1 to 2"


@pytest.mark.parametrize(
    ("launched", "attached", "stopped", "expected"),
    [(100, 900, 2000, 800), (100, 900, 500, 400), (100, 900, 50, 0), (None, 900, 500, None), (100, 900, None, None)],
)
def test_a_driver_is_prepared_until_it_asks_for_work_or_the_old_one_stops(
    launched: int | None, attached: int | None, stopped: int | None, expected: int | None
) -> None:
    times = {"launched_at_ms": launched, "attached_at_ms": attached}
    assert prepared_ms(change(times=times, stopped_at_ms=stopped)) == expected


def test_the_figures_that_a_change_keeps_are_those_of_the_report() -> None:
    assert metrics_of_change(None) is None
    assert metrics_of_change(DriverMetrics(input_records_per_second=5).model_dump()) is None, "no batch has run"
    reported = DriverMetrics(
        batches=1,
        input_records_per_second=1,
        processed_records_per_second=2,
        busy_ratio=0.5,
        batch_duration_ms=4,
        pending_records=6,
        operators=[OperatorMetrics(uid=str(lag_ms), event_time_lag_ms=lag_ms) for lag_ms in (7, 9, 8, None, 2**53, -1)],
    )
    assert metrics_of_change(reported.model_dump()) == {
        "input_rate": 1,
        "processed_rate": 2,
        "busy_ratio": 0.5,
        "batch_duration_ms": 4,
        "lag_records": 6,
        "lag_ms": 9,
    }
