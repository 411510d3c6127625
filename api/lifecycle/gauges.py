"""The gauges of a driver's report, each with one meaning everywhere. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.metrics import GAUGE, JOB_METRICS

from .job_totals import NUMBER_MAX

if TYPE_CHECKING:
    from keyscale.jobs.protocol.messages import DriverMetrics

KNOWN_WHILE_IDLE = ("input_rate", "busy_ratio")
"""The metrics that a driver knows before its first batch, while its sources are empty."""
REPORTED_GAUGES = tuple(
    metric for metric in JOB_METRICS if metric.kind is GAUGE and metric.reported_as and metric.name != "lag_records"
)


def gauges_of(metrics: DriverMetrics | None) -> dict[str, Any]:
    """Returns a job's gauges; None for unknown values.

    Args:
        metrics: The report; None: no driver has a current report.
    """
    has_run = metrics is not None and metrics.batches > 0
    is_idle = metrics is not None and metrics.waits_for_input
    return {
        **{
            metric.name: getattr(metrics, metric.field)
            if has_run or (is_idle and metric.name in KNOWN_WHILE_IDLE)
            else None
            for metric in REPORTED_GAUGES
        },
        "lag_ms": _lag_ms(metrics),
        "watermark_ms": _watermark_ms(metrics),
    }


def _lag_ms(metrics: DriverMetrics | None) -> int | None:
    lags = [] if metrics is None else [operator.event_time_lag_ms for operator in metrics.operators]
    return max((lag for lag in map(_plausible, lags) if lag is not None), default=None)


def _watermark_ms(metrics: DriverMetrics | None) -> int | None:
    known = [] if metrics is None else [operator.watermark_ms for operator in metrics.operators]
    return min((each for each in known if each is not None and abs(each) < NUMBER_MAX), default=None)


def _plausible(number: int | None) -> int | None:
    """Returns a plausible number; None for an implausible number.

    Events ahead of the clock lead to implausible numbers.
    """
    return number if number is not None and 0 <= number < NUMBER_MAX else None
