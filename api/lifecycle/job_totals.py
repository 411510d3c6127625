"""A job's counters since it was created, over all its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import convert, to_builtins

from keyscale.db.repositories import attempts
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.metrics import JOB_COUNTERS, LOG_COUNTERS
from keyscale.user_series import UserSeries, at_least

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.metrics import Metric
    from keyscale.state.doors.catalogue import JobCounters

NUMBER_MAX = 2**53
"""Larger numbers are invalid: JSON readers would round them, and times are always smaller."""
_ZERO = {metric.name: 0 for metric in JOB_COUNTERS}


def totals_before(session: Session, job_id: str, number: int) -> dict[str, Any]:
    """Returns a job's counters before an attempt, as its drivers reported."""
    known = known_before(session, job_id, number)
    return {name: known[name] for name in (*_ZERO, "user")}


def known_before(session: Session, job_id: str, number: int) -> dict[str, Any]:
    """Returns what earlier drivers of a job have reported.

    These are the job's counters, and the records that waited at the last report, with its time.
    """
    before = attempts.counted_before(session, job_id, number)
    metrics = None if before is None else DriverMetrics.model_validate(before.metrics)
    earlier = None if before is None else before.totals_before
    at_ms = None if before is None else before.heartbeat_at_ms
    user = user_counters(earlier, None if before is None else before.metrics)
    return {**added_totals(earlier, metrics), "user": user, **waiting_records(earlier, metrics, at_ms)}


def waiting_records(
    before: Mapping[str, Any] | None, metrics: DriverMetrics | None, at_ms: int | None
) -> dict[str, int]:
    """Returns the last known number of waiting records, with its time.

    Args:
        before: What is known before the attempt.
        metrics: The last report of the attempt's driver.
        at_ms: The time of the report.
    """
    if metrics is not None and at_ms is not None:
        records, age_ms = metrics.pending_records, metrics.lag_age_ms or 0
        if records is not None and 0 <= records < NUMBER_MAX:
            return {"lag_records": records, "lag_records_at_ms": at_ms - age_ms}
    return {name: before[name] for name in ("lag_records", "lag_records_at_ms") if before and name in before}


def added_totals(before: Mapping[str, Any] | None, metrics: DriverMetrics | None) -> dict[str, int]:
    """Returns a job's counters.

    Counters in the commit log are as the driver reports them: they include a batch that was committed just before its
    driver was killed. Other counters are the total before the attempt plus the attempt's own count. So are all counters
    of a driver that has not restored yet or has an earlier version.
    """
    counted = dict(_ZERO) if metrics is None else _counted(metrics)
    totals = {name: (before or _ZERO).get(name, 0) + number for name, number in counted.items()}
    if metrics is not None and metrics.counters is not None:
        # Counters only grow; a driver without the known counters begins with its log's counters.
        known = before or _ZERO
        totals |= {
            metric.name: max(known.get(metric.name, 0), getattr(metrics.counters, metric.name))
            for metric in LOG_COUNTERS
        }
    return {name: max(0, min(total, NUMBER_MAX)) for name, total in totals.items()}


def with_log_counters(reported: Mapping[str, Any] | None, counters: JobCounters) -> dict[str, Any]:
    """Returns a driver's last metrics with the counters of its log.

    The log also has the batches that the driver committed after its last report. Counters only grow.
    """
    known = (reported or {}).get("counters") or {}
    names = [metric.name for metric in LOG_COUNTERS]
    newest = {name: min(max(getattr(counters, name), known.get(name, 0)), NUMBER_MAX) for name in names}
    user = at_least(convert(known.get("user") or [], list[UserSeries]), counters.user_series)
    return {**(reported or {}), "counters": {**newest, "user": to_builtins(user)}}


def user_counters(before: Mapping[str, Any] | None, reported: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the counters and histograms of a job's functions.

    A driver that has restored reports what its log has, which includes what is known before its attempt.

    Args:
        before: What is known before the attempt.
        reported: The last report of the attempt's driver.
    """
    counters = (reported or {}).get("counters")
    series: list[dict[str, Any]] = ((before or {}) if counters is None else counters).get("user") or []
    return series


def _counted(metrics: DriverMetrics) -> dict[str, int]:
    return {metric.name: max(0, _count(metric, metrics)) for metric in JOB_COUNTERS}


def _count(metric: Metric, metrics: DriverMetrics) -> int:
    """Returns what a driver has counted since it started.

    Counts of operators and sinks are added.
    """
    if not metric.of_job:
        return int(getattr(metrics, metric.field))
    return sum(getattr(part, metric.name, None) or 0 for part in (*metrics.operators, *metrics.sinks))
