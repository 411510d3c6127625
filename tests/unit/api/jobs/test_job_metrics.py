"""The figures of a job: unknown stays unknown, and counters go on from one attempt to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.jobs.job_metrics import job_metrics_of
from keyscale.api.lifecycle.current_report import SILENT_MS, reports_now
from keyscale.api.lifecycle.job_totals import added_totals
from keyscale.db.models import Attempt
from keyscale.jobs.protocol.messages import DriverMetrics, Heartbeat
from keyscale.vocabulary import AttemptStage
from tests.support.repository import GOLDEN

if TYPE_CHECKING:
    from keyscale.api.jobs.schemas.job_metrics import JobMetricsAnswer

NOW_MS = 1_000_000
METRICS: dict[str, Any] = {
    "batches": 4,
    "input_records": 100,
    "output_records": 90,
    "input_records_per_second": 10.0,
    "processed_records_per_second": 80.0,
    "batch_duration_ms": 125.0,
    "busy_ratio": 0.5,
    "pending_records": 7,
    "operators": [
        {"uid": "a", "late_records": 2, "watermark_ms": 900_000, "event_time_lag_ms": 3000},
        {"uid": "b", "late_records": 1, "dead_letters": 4, "watermark_ms": 950_000, "event_time_lag_ms": 500},
    ],
    "sinks": [{"uid": "c", "dead_letters": 5}, {"uid": "d"}],
}


def attempt(metrics: dict[str, Any] | None = None, **columns: Any) -> Attempt:
    known = {"stage": AttemptStage.ACTIVE, "driver_state": "RUNNING", "heartbeat_at_ms": NOW_MS}
    return Attempt(metrics={**METRICS, **(metrics or {})}, **{**known, **columns})


def shown(found: Attempt | None, state_size: int | None, *, now_ms: int) -> JobMetricsAnswer:
    if found is None:
        return job_metrics_of(None, None, state_size, is_current=False, at_ms=None)
    metrics = DriverMetrics.model_validate(found.metrics)
    is_current = reports_now(found, now_ms=now_ms)
    return job_metrics_of(metrics, found.totals_before, state_size, is_current=is_current, at_ms=found.heartbeat_at_ms)


def test_a_running_jobs_figures_are_those_of_its_driver() -> None:
    figures = shown(attempt(), 5000, now_ms=NOW_MS)
    assert (
        figures.model_dump().items()
        >= {
            "input_rate": 10.0,
            "processed_rate": 80.0,
            "busy_ratio": 0.5,
            "batch_duration_ms": 125.0,
            "lag_records": 7,
            "lag_records_at_ms": NOW_MS,
            "lag_ms": 3000,
            "watermark_ms": 900_000,
            "state_size": 5000,
            "input_records": 100,
            "output_records": 90,
            "late_records": 3,
            "dead_letters": 9,
            "lost_records": 0,
        }.items()
    )


@pytest.mark.parametrize(
    "columns",
    [{"stage": AttemptStage.ENDED}, {"driver_state": "RESTORING"}, {"heartbeat_at_ms": NOW_MS - SILENT_MS - 1}],
)
def test_a_job_that_does_not_run_has_counters_a_state_size_and_what_waited_but_no_rates_and_no_lag(
    columns: dict[str, Any],
) -> None:
    figures = shown(attempt(**columns), 5000, now_ms=NOW_MS)
    assert (figures.input_rate, figures.lag_ms, figures.busy_ratio) == (None, None, None)
    assert (figures.lag_records, figures.lag_records_at_ms) == (7, columns.get("heartbeat_at_ms", NOW_MS))
    assert (figures.input_records, figures.late_records, figures.state_size) == (100, 3, 5000)


def test_while_a_driver_starts_the_records_waited_when_the_driver_before_last_reported() -> None:
    before = {"lag_records": 415_941, "lag_records_at_ms": NOW_MS - 9000}
    figures = job_metrics_of(None, before, None, is_current=False, at_ms=None)
    assert (figures.lag_records, figures.lag_records_at_ms) == (415_941, NOW_MS - 9000)
    restoring = attempt({"pending_records": None}, driver_state="RESTORING", totals_before=before)
    assert shown(restoring, None, now_ms=NOW_MS).lag_records == 415_941
    counted = attempt({"pending_records": 420_000}, driver_state="RESTORING", totals_before=before)
    figures = shown(counted, None, now_ms=NOW_MS)
    assert (figures.lag_records, figures.lag_records_at_ms) == (420_000, NOW_MS)


def test_the_records_that_wait_in_a_source_that_is_away_were_counted_at_its_last_answer() -> None:
    figures = shown(attempt({"lag_age_ms": 60_000}), None, now_ms=NOW_MS)
    assert (figures.lag_records, figures.lag_records_at_ms) == (7, NOW_MS - 60_000)


def test_an_implausible_number_of_waiting_records_is_unknown() -> None:
    figures = shown(attempt({"pending_records": -1}), None, now_ms=NOW_MS)
    assert (figures.lag_records, figures.lag_records_at_ms) == (None, None)


def test_a_job_that_has_never_run_has_no_state_size_and_has_counted_nothing() -> None:
    figures = shown(None, None, now_ms=NOW_MS)
    assert (figures.state_size, figures.input_records, figures.input_rate) == (None, 0, None)


def test_events_ahead_of_the_clock_and_a_watermark_at_its_end_are_no_lag_and_no_time() -> None:
    ahead = {"uid": "a", "watermark_ms": 2**63 - 1, "event_time_lag_ms": -34_765_507_889}
    figures = shown(attempt({"operators": [ahead], "pending_records": None}), None, now_ms=NOW_MS)
    assert (figures.lag_ms, figures.watermark_ms, figures.lag_records) == (None, None, None)


def test_before_the_first_batch_there_is_no_duration_and_a_waiting_job_has_a_rate_of_zero() -> None:
    nothing_yet = {"batches": 0, "batch_duration_ms": 0.0, "input_records_per_second": 0.0}
    assert shown(attempt(nothing_yet), None, now_ms=NOW_MS).input_rate is None
    waiting = shown(attempt({**nothing_yet, "waits_for_input": True}), None, now_ms=NOW_MS)
    assert (waiting.input_rate, waiting.batch_duration_ms, waiting.processed_rate) == (0.0, None, None)


def test_a_report_of_a_driver_that_counts_no_dead_letters_is_read() -> None:
    report = Heartbeat.model_validate_json((GOLDEN / "heartbeat-v1.json").read_bytes())
    [operator] = report.metrics.operators
    assert (operator.late_records, operator.dead_letters, report.metrics.sinks) == (4, 0, [])
    before = {"input_records": 7, "output_records": 6, "late_records": 5, "lost_records": 1}  # as such versions kept it
    totals = added_totals(before, report.metrics)
    assert (
        totals.items()
        >= {
            "input_records": 107,
            "output_records": 86,
            "late_records": 9,
            "dead_letters": 0,
            "lost_records": 4,
        }.items()
    )


@pytest.mark.parametrize(("sent", "shown_as"), [(-5, 0), (2**64, 2**53)])
def test_a_number_of_dead_letters_that_cannot_be_is_shown_within_its_bounds(sent: int, shown_as: int) -> None:
    hostile = attempt({"operators": [], "sinks": [{"uid": "c", "dead_letters": sent}]})
    assert shown(hostile, None, now_ms=NOW_MS).dead_letters == shown_as


def test_counters_of_the_commit_log_are_shown_as_they_are_and_the_others_added_up() -> None:
    before = {"input_records": 60, "output_records": 50, "late_records": 5, "dead_letters": 1, "lost_records": 2}
    counters = {"input_records": 1100, "output_records": 990, "late_records": 13, "dead_letters": 2**64}
    restored = attempt({"counters": counters, "lost_records": 3}, totals_before=before)
    figures = shown(restored, None, now_ms=NOW_MS).model_dump()
    expected = {**counters, "dead_letters": 2**53, "lost_records": 5}
    assert {name: figures[name] for name in expected} == expected
    next_one = added_totals(before, DriverMetrics.model_validate(restored.metrics))
    assert next_one.items() >= expected.items(), "what the next attempt begins with"


def test_counters_never_fall() -> None:
    before = {"input_records": 100, "output_records": 50}
    untold = DriverMetrics.model_validate({"counters": {"input_records": 7, "output_records": 51}})
    totals = added_totals(before, untold)
    assert (totals["input_records"], totals["output_records"]) == (100, 51)


def test_counters_go_on_where_the_attempt_before_had_stopped() -> None:
    first = added_totals(None, DriverMetrics(input_records=100, lost_records=3))
    second = added_totals(first, DriverMetrics(input_records=20))
    assert (second["input_records"], second["lost_records"]) == (120, 3)
    quiet = attempt({"batches": 0, "input_records": 0, "operators": []}, totals_before=second)
    assert shown(quiet, None, now_ms=NOW_MS).input_records == 120
