"""A policy takes savepoints in time, and keeps the last intact savepoint."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.maintenance.savepoint_policy import is_due, outdated
from keyscale.db.models import Checkpoint
from keyscale.db.repositories.savepoint_policies import Kept, Taking
from keyscale.vocabulary import OperationStatus

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
COMPLETED, FAILED, IN_PROGRESS = OperationStatus.COMPLETED, OperationStatus.FAILED, OperationStatus.IN_PROGRESS


@pytest.mark.parametrize(
    ("minutes_ago", "status", "due"),
    [
        (None, None, True),
        (61, COMPLETED, True),
        (59, COMPLETED, False),
        (61, IN_PROGRESS, False),
        (11, FAILED, True),
        (9, FAILED, False),
    ],
)
def test_a_savepoint_is_due_after_the_interval_or_sooner_after_a_failure(
    minutes_ago: int | None, status: OperationStatus | None, due: bool
) -> None:
    requested_at_ms = None if minutes_ago is None else NOW_MS - minutes_ago * 60_000
    assert is_due(Taking("j", {"interval_ms": HOUR_MS}, requested_at_ms, status), NOW_MS) is due


@pytest.mark.parametrize(("minutes_ago", "due"), [(2, True), (1, True), (0, False)])
def test_a_failure_never_makes_a_savepoint_later_than_its_interval(minutes_ago: int, due: bool) -> None:
    requested_at_ms = NOW_MS - minutes_ago * 60_000
    assert is_due(Taking("j", {"interval_ms": 60_000}, requested_at_ms, FAILED), NOW_MS) is due


def test_without_an_interval_no_savepoint_is_due() -> None:
    assert not is_due(Taking("j", {}, None, None), NOW_MS)


def kept(settings: dict[str, Any] | None, *intact: bool, job_id: str = "j") -> list[Kept]:
    """Savepoints of one hour each, the newest first, verified as given."""
    return [
        Kept(
            Checkpoint(
                job_id=job_id,
                checkpoint_id=100 - place,
                trigger_timestamp=NOW_MS - place * HOUR_MS,
                verification={"restorable": is_intact},
            ),
            settings,
        )
        for place, is_intact in enumerate(intact)
    ]


@pytest.mark.parametrize(
    ("settings", "intact", "gone"),
    [
        ({"keep_count": 2}, [True] * 4, [98, 97]),
        (None, [True] * 4, [97]),
        ({"keep_count": 1}, [False, False, True, True], [99, 97]),  # the newest intact one is the third
        ({"keep_count": 9, "keep_age_ms": 90 * 60_000}, [True] * 4, [98, 97]),
        ({"keep_count": 9, "keep_age_ms": 60_000}, [True], []),
        ({"keep_count": 9, "keep_age_ms": 60_000}, [False] * 3, [99, 98]),
        ({"keep_count": 2, "of_a_newer_version": 1}, [True] * 2, []),
    ],
)
def test_the_newest_and_the_newest_intact_savepoint_stay(
    settings: dict[str, Any] | None, intact: list[bool], gone: list[int]
) -> None:
    assert [each.checkpoint_id for each in outdated(kept(settings, *intact), NOW_MS)] == gone


def test_each_job_has_its_own_policy() -> None:
    both = [*kept({"keep_count": 1}, True, True, job_id="a"), *kept({"keep_count": 2}, True, True, job_id="b")]
    assert [(each.job_id, each.checkpoint_id) for each in outdated(both, NOW_MS)] == [("a", 99)]
