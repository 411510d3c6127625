"""A savepoint with changed state has a number of its own, and is derived from the chosen snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.errors import CheckpointNotFoundError
from keyscale.api.key_state import changed_keys as service
from keyscale.api.key_state.schemas import KeyChangeItem
from keyscale.db.models import Checkpoint, Job
from keyscale.vocabulary import CheckpointStatus

SESSION: Any = None
JOB = Job(id="job")


@pytest.mark.parametrize(
    ("savepoint_id", "attempt", "listed", "number"),
    [
        ("new", 3, set(), 15),
        ("repaired", 3, set(), 12),
        ("repaired", 3, {12}, 15),
        ("repaired", 2, set(), 9),
        ("repaired", 4, set(), 15),
    ],
    ids=["another request", "a repeated request", "its number is taken", "of an earlier attempt", "after a new start"],
)
def test_a_repeated_request_of_the_same_attempt_keeps_its_number_and_other_requests_get_a_new_number(
    monkeypatch: pytest.MonkeyPatch, savepoint_id: str, attempt: int, listed: set[int], number: int
) -> None:
    requested = [
        {"savepoint_id": "other", "checkpoint_id": 14, "attempt": 3},
        {"savepoint_id": "repaired", "checkpoint_id": 12, "attempt": 3},
        {"savepoint_id": "repaired", "checkpoint_id": 9, "attempt": 2},
        {"savepoint_id": "repaired", "checkpoint_id": 2},
    ]
    told = {"job": [SimpleNamespace(details=each) for each in requested]}
    monkeypatch.setattr(service.events, "requested_state_changes", lambda _, job_id: told[job_id])
    monkeypatch.setattr(service.checkpoints, "find", lambda _, __, found: Checkpoint() if found in listed else None)
    monkeypatch.setattr(service.checkpoints, "next_id", lambda _, job_id: {"job": 10}[job_id])
    assert service._number_of(SESSION, JOB, savepoint_id, attempt) == number
    told["job"].clear()
    assert service._number_of(SESSION, JOB, savepoint_id, attempt) == 10


@pytest.mark.parametrize("status", CheckpointStatus)
@pytest.mark.parametrize("location", ["file:///4", None])
def test_the_chosen_snapshot_is_one_that_is_complete_and_in_the_store(
    monkeypatch: pytest.MonkeyPatch, status: CheckpointStatus, location: str | None
) -> None:
    chosen = Checkpoint(status=status, external_path=location)
    latest = Checkpoint(status=CheckpointStatus.COMPLETED, external_path="file:///latest")
    monkeypatch.setattr(service.checkpoints, "find", lambda _, *key: {("job", 4): chosen}.get(key))
    monkeypatch.setattr(service.JobTransaction, "latest_completed", lambda transaction: {JOB: latest}[transaction.job])
    if status is CheckpointStatus.COMPLETED and location is not None:
        assert service._source(SESSION, JOB, 4) == location
    else:
        with pytest.raises(CheckpointNotFoundError):
            service._source(SESSION, JOB, 4)
    with pytest.raises(CheckpointNotFoundError):
        service._source(SESSION, JOB, 5)
    assert service._source(SESSION, JOB, None) == "file:///latest"


def change(operator: str, state: str, *, deletes: bool = False) -> KeyChangeItem:
    return KeyChangeItem(operator=operator, state=state, key="secret-key", value="secret-value", deletes=deletes)


def test_the_event_of_a_change_names_its_places_and_neither_keys_nor_values() -> None:
    many = [change("count", f"s{number}") for number in range(6)]
    shown = [
        service._summary(changes)
        for changes in (
            [change("count", "clicks")],
            [change("count", "clicks", deletes=True)],
            [change("sum", "b"), change("count", "a", deletes=True), change("count", "a"), change("sum", "b")],
            many[:5],
            many,
        )
    ]
    five = "count.s0, count.s1, count.s2, count.s3, count.s4"
    assert shown == [
        "sets state clicks of operator count for one key",
        "deletes state clicks of operator count for one key",
        "has 3 set and 1 deleted entries of count.a, sum.b",
        f"has 5 set and 0 deleted entries of {five}",
        f"has 6 set and 0 deleted entries of {five}, ...",
    ]
