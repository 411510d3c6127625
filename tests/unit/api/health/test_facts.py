"""The facts of a job's health are of its last batches, its newest snapshot and its present driver."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.health import health
from keyscale.api.health.facts import BATCHES_MAX, HealthFacts, idle_at_ms
from keyscale.api.health.health import health_of
from keyscale.api.health.schemas import HealthReasonAnswer
from keyscale.api.health.slowness import processor_wait
from keyscale.vocabulary import HealthLevel


@pytest.mark.parametrize(
    ("attempt", "report", "expected"),
    [
        ({"driver_state": "SLEEPING", "heartbeat_at_ms": 5000, "created_at_ms": 7}, {"lag_age_ms": 600}, 4400),
        ({"driver_state": "SLEEPING", "heartbeat_at_ms": 5000}, {}, 5000),
        ({"driver_state": "SLEEPING", "cause": "wake", "created_at_ms": 7}, {}, 7),
        ({"driver_state": "SLEEPING", "created_at_ms": 7}, {}, None),
        ({"driver_state": "RUNNING", "heartbeat_at_ms": 5000, "cause": "wake", "created_at_ms": 7}, {}, 7),
        ({"driver_state": "RUNNING", "heartbeat_at_ms": 5000, "cause": "start", "created_at_ms": 7}, {}, None),
        ({}, {"lag_age_ms": 600}, None),
    ],
)
def test_sources_were_empty_when_a_sleeping_driver_asked_them_or_before_it_woke(
    attempt: dict[str, Any], report: dict[str, Any], expected: int | None
) -> None:
    assert idle_at_ms(attempt, report) == expected


@pytest.mark.parametrize(
    ("snapshot_at_ms", "idle", "retention_ms", "complete", "until"),
    [
        (1000, None, 50, 1000, 1050),
        (1000, 3000, 50, 3000, 3050),
        (3000, 1000, 50, 3000, 3050),
        (1000, None, None, 1000, None),
        (None, 3000, 50, None, None),
    ],
)
def test_a_snapshot_has_all_records_until_the_last_look_that_found_none(
    snapshot_at_ms: int | None, idle: int | None, retention_ms: int | None, complete: int | None, until: int | None
) -> None:
    facts = HealthFacts({"source_retention_ms": retention_ms}, snapshot_at_ms=snapshot_at_ms, idle_at_ms=idle)
    assert (facts.complete_at_ms, facts.restorable_until_at_ms) == (complete, until)


def batch(records: int, **parts: float) -> dict[str, Any]:
    return {"input_records": records, **parts}


def test_of_all_batches_the_last_few_count_and_never_the_first_one_of_the_driver() -> None:
    numbered = [batch(number) for number in range(BATCHES_MAX + 3)]
    for count in (0, 1, 2, BATCHES_MAX, BATCHES_MAX + 1, BATCHES_MAX + 3):
        facts = HealthFacts({"recent_batches": numbered[:count]})
        expected = list(range(1, count))[-BATCHES_MAX:]
        assert [each["input_records"] for each in facts.batches] == expected
    assert HealthFacts({}).batches == ()


def test_the_parts_of_batches_are_means_and_their_shares_are_of_the_busy_time() -> None:
    recent = [
        batch(9, spark_ms=60_000),
        batch(0, wait_ms=300, function_ms=100),
        batch(40, function_ms=300, sink_ms=400),
    ]
    facts = HealthFacts({"recent_batches": recent})
    assert (facts.parts_ms["function_ms"], facts.parts_ms["sink_ms"], facts.parts_ms["wait_ms"]) == (200, 200, 150)
    assert (facts.busy_ms, facts.busy_ratio) == (400, pytest.approx(400 / 550))
    assert (facts.share("function_ms"), facts.share("function_ms", "sink_ms")) == (0.5, 1.0)
    assert facts.records_of_batch == 40, "a batch of timers alone has no records to count"
    empty = HealthFacts({})
    assert (empty.busy_ms, empty.busy_ratio, empty.share("sink_ms"), empty.records_of_batch) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("report", "behind_s"),
    [
        ({"pending_records": 5000, "lag_growth": 200.0, "input_records_per_second": 800.0}, 5),
        ({"pending_records": 5000, "lag_growth": -300.0, "input_records_per_second": 800.0}, 10),
        ({"pending_records": 5000, "input_records_per_second": 500.0}, 10),
        ({"pending_records": 5, "lag_growth": -800.0, "input_records_per_second": 800.0}, 5),
        ({"pending_records": 0}, 0),
        ({"pending_records": None, "lag_growth": 1.0}, None),
    ],
)
def test_a_job_is_behind_by_the_time_in_which_as_many_records_arrive(
    report: dict[str, Any], behind_s: float | None
) -> None:
    assert HealthFacts(report).behind_s == behind_s


def subtask(busy_ms: float, waited_ms: float | None) -> dict[str, Any]:
    return {"open_ms": 0.1 * busy_ms, "process_ms": 0.4 * busy_ms, "store_ms": 0.3 * busy_ms,
            "finish_ms": 0.2 * busy_ms, "processor_wait_ms": waited_ms}  # fmt: skip


@pytest.mark.parametrize(
    ("operators", "share"),
    [
        ([[subtask(200, 60)], [subtask(300, 40), subtask(500, None)]], 0.1),
        ([[subtask(100, 50)], [subtask(100, 50)]], 0.5),
        ([[subtask(100, 50), subtask(99, 50)]], 0.0),
        ([[subtask(300, 900)]], 1.0),
        ([], 0.0),
        ([[]], 0.0),
    ],
)
def test_tasks_that_have_worked_wait_for_a_processor_for_a_share_of_their_time(
    operators: list[list[dict[str, Any]]], share: float
) -> None:
    assert processor_wait([{"subtasks": each} for each in operators]) == pytest.approx(share)


@pytest.mark.parametrize(
    ("severities", "level", "score"),
    [([], HealthLevel.OK, 100), ([10], HealthLevel.DEGRADED, 90), ([10, 50], HealthLevel.DEGRADED, 40),
     ([11, 50], HealthLevel.CRITICAL, 39), ([95, 10], HealthLevel.CRITICAL, 0)],
)  # fmt: skip
def test_the_level_follows_from_all_reasons_together(
    monkeypatch: pytest.MonkeyPatch, severities: list[int], level: HealthLevel, score: int
) -> None:
    found = [HealthReasonAnswer(code="X", message="", advice="", severity=each) for each in severities]
    monkeypatch.setattr(health, "faults_of", lambda _: found[:1])
    monkeypatch.setattr(health, "slowness_of", lambda _: found[1:])
    answer = health_of(HealthFacts(is_current=True))
    assert (answer.level, answer.score) == (level, score)
    assert [reason.severity for reason in answer.reasons] == sorted(severities, reverse=True)
    if not severities:
        assert health_of(HealthFacts()).level is HealthLevel.UNKNOWN
