"""Faults are reasons of a job's health, each with its own time, for as long as they last."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.health.facts import HealthFacts, StartWait
from keyscale.api.health.faults import unsettled_failure
from keyscale.api.health.health import health_of
from keyscale.jobs.protocol.messages import CleanUp, DriverMetrics, Failure, FailureHistory, SinkOutage
from keyscale.vocabulary import HealthLevel

FAILURE = Failure(code="JOB_FUNCTION_FAILED", message="ValueError: no", advice="Correct it.")
NOW_MS = 10_000_000


def failing(*times_ms: int, last: Failure | None = FAILURE) -> dict[str, Any]:
    history = FailureHistory(count=len(times_ms), times_ms=list(times_ms))
    return DriverMetrics(failures=history, last_failure=last).model_dump(mode="json")


def reasons(**facts: Any) -> list[Any]:
    known: dict[str, Any] = {"is_active": True, "is_current": True, "at_ms": NOW_MS}
    return health_of(HealthFacts(**{**known, **facts})).reasons


def codes(**facts: Any) -> list[str]:
    return [reason.code for reason in reasons(**facts)]


def test_a_failure_is_shown_until_a_batch_is_committed_after_it() -> None:
    assert unsettled_failure(failing(100, 200), None) == FAILURE.model_dump(mode="json")
    assert unsettled_failure(failing(100, 200), 199) is not None
    assert unsettled_failure(failing(100, 200), 200) is None


def test_failures_of_earlier_drivers_are_not_the_drivers_own() -> None:
    assert unsettled_failure(failing(100, last=None), None) is None
    assert unsettled_failure(failing(), None) is None
    assert unsettled_failure({}, None) is None


def test_each_fault_of_a_running_job_is_a_reason_with_its_own_time_the_worst_first() -> None:
    report = DriverMetrics(
        store_away_since_ms=1,
        sink_outage=SinkOutage(uid="counts", since_ms=2, reason="refused"),
        lost_records=7,
        lost_records_since_ms=3,
        clean_up=CleanUp(failing_since_ms=4, failure=Failure(code="X", message="denied", advice="allow it")),
    ).model_dump(mode="json")
    found = reasons(report=report)
    assert [(each.code, each.since_ms) for each in found] == [
        ("STATE_STORE_UNAVAILABLE", 1),
        ("SINK_UNAVAILABLE", 2),
        ("SOURCE_RECORDS_LOST", 3),
        ("X", 4),
    ]
    assert "counts" in found[1].message
    assert "refused" in found[1].message
    assert " 7 records" in found[2].message
    assert ("denied" in found[3].message, found[3].advice) == (True, "allow it")
    assert all(each.advice for each in found)
    assert reasons(report=report, is_active=False) == [], "another attempt may run the job"


def test_a_clean_up_that_works_again_is_no_fault() -> None:
    works = DriverMetrics(clean_up=CleanUp(passes=1, last_at_ms=5)).model_dump(mode="json")
    assert reasons(report=works) == []


@pytest.mark.parametrize(
    ("ages_ms", "expected"),
    [
        ((1000, 2000, 3000), ["FAILS_REPEATEDLY"]),
        ((1000, 2000), []),
        ((1000, 2000, 600_000), []),
    ],
)
def test_three_failures_within_ten_minutes_are_too_many(ages_ms: tuple[int, ...], expected: list[str]) -> None:
    report = failing(*(NOW_MS - age_ms for age_ms in sorted(ages_ms, reverse=True)))
    assert codes(report=report) == expected
    assert codes(report=report, is_active=False, is_current=False) == expected, "while the job waits for its restart"
    assert codes(report=report, is_settled=True) == []


@pytest.mark.parametrize(("took_ms", "expected"), [(7000, ["CHECKPOINT_NEAR_TIMEOUT"]), (6999, []), (None, [])])
def test_a_checkpoint_is_near_its_timeout_from_seven_tenths_on(took_ms: int | None, expected: list[str]) -> None:
    assert codes(checkpoint_ms=took_ms, checkpoint_timeout_ms=10_000) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"snapshot_at_ms": 1000, "at_ms": 1750}, ["RESTORABLE_SOON_OVER"]),
        ({"snapshot_at_ms": 1000, "at_ms": 1749}, []),
        ({"snapshot_at_ms": 1000, "at_ms": 1750, "is_settled": True}, []),
        ({"at_ms": 1750}, []),
        ({"snapshot_at_ms": 1000, "at_ms": 1750, "report": {}}, []),
    ],
)
def test_a_snapshot_is_restorable_for_as_long_as_the_sources_keep_the_records_after_it(
    facts: dict[str, Any], expected: list[str]
) -> None:
    assert codes(**{"report": {"source_retention_ms": 1000}, **facts}) == expected


def test_a_fault_that_time_makes_begins_when_its_limit_was_reached() -> None:
    (over,) = reasons(report={"source_retention_ms": 1000}, snapshot_at_ms=2000, at_ms=2900)
    assert (over.code, over.since_ms) == ("RESTORABLE_SOON_OVER", 2750)
    times_ms = [NOW_MS - age_ms for age_ms in (900_000, 500_000, 400_000, 300_000)]
    (repeated,) = reasons(report=failing(*times_ms))
    assert (repeated.code, repeated.since_ms) == ("FAILS_REPEATEDLY", NOW_MS - 500_000)
    assert "has failed 3 times within 10 minutes; the last failure was JOB_FUNCTION_FAILED" in repeated.message
    (unknown,) = reasons(report=failing(*times_ms, last=None))
    assert unknown.message.endswith("within 10 minutes")


def test_a_failed_job_is_critical_and_has_no_score_but_zero() -> None:
    failure = {"code": "JOB_FUNCTION_FAILED", "message": "no such airport"}
    health = health_of(HealthFacts(failure=failure, is_settled=True, ended_at_ms=900))
    assert (health.level, health.score) == (HealthLevel.CRITICAL, 0)
    (reason,) = health.reasons
    assert (reason.code, reason.message, reason.advice, reason.since_ms) == (*failure.values(), None, 900)


def test_a_start_that_waits_for_its_turn_is_a_reason_of_a_job_without_a_driver() -> None:
    health = health_of(HealthFacts(start_wait=StartWait(place=2, count=3, since_ms=100)))
    assert (health.level, health.score) == (HealthLevel.DEGRADED, 90)
    assert "in place 2 of 3" in health.reasons[0].message


LATER = ": later, a start from it would miss records"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"failure": {"code": "X", "message": "no", "advice": "do"}, "ended_at_ms": 7}, ("X", 95, None, "no")),
        (
            {"failure": {"code": "X", "message": "no"}, "ended_at_ms": 7, "is_settled": True},
            ("X", 100, 7, "no"),
        ),
        (
            {"start_wait": StartWait(place=2, count=3, since_ms=100)},
            ("START_WAITS", 10, 100, "the start waits for its turn, in place 2 of 3: other drivers start first"),
        ),
        (
            {"checkpoint_ms": 7600, "checkpoint_timeout_ms": 10_000},
            ("CHECKPOINT_NEAR_TIMEOUT", 30, None, "the latest checkpoint took 7.6 s of the 10 s allowed"),
        ),
        (
            {"report": {"source_retention_ms": 100_000}, "snapshot_at_ms": NOW_MS - 80_000},
            (
                "RESTORABLE_SOON_OVER",
                70,
                NOW_MS - 5000,
                f"the newest snapshot is 80 s old, and the sources keep records for 100 s{LATER}",
            ),
        ),
    ],
)
def test_each_reason_has_its_points_its_time_and_its_sentence(
    facts: dict[str, Any], expected: tuple[str, int, int | None, str]
) -> None:
    (reason,) = reasons(**facts)
    assert (reason.code, reason.severity, reason.since_ms, reason.message) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"checkpoint_ms": 7600, "checkpoint_timeout_ms": 10_000, "is_current": False}, []),
        ({"checkpoint_ms": 7600, "checkpoint_timeout_ms": None}, []),
        ({"report": {"store_away_since_ms": 5}, "is_current": False}, ["STATE_STORE_UNAVAILABLE"]),
        ({"report": {"source_retention_ms": 10}, "snapshot_at_ms": 5, "is_active": False}, ["RESTORABLE_SOON_OVER"]),
    ],
)
def test_a_reason_holds_as_long_as_its_report_does(facts: dict[str, Any], expected: list[str]) -> None:
    assert codes(**facts) == expected
