"""A job's metrics, from its driver's report and its latest checkpoint.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.metrics import FIGURES, GAUGE

from ..lifecycle.job_totals import NUMBER_MAX, added_totals, waiting_records
from .schemas.figures import FiguresAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.jobs.protocol.messages import DriverMetrics


KNOWN_WHILE_IDLE = ("input_rate", "busy_ratio")
"""The metrics that a driver knows before its first batch, while its sources are empty."""
REPORTED_GAUGES = tuple(
    metric for metric in FIGURES if metric.kind is GAUGE and metric.reported_as and metric.name != "lag_records"
)


def figures_of(
    metrics: DriverMetrics | None,
    before: Mapping[str, Any] | None,
    state_size: int | None,
    *,
    is_current: bool,
    at_ms: int | None,
) -> FiguresAnswer:
    """Returns a job's metrics.

    Args:
        metrics: The last report of the driver of the attempt that runs the job, or else of its last attempt.
        before: What is known of the job before that attempt: its counters, and the records that waited.
        state_size: The state size of its latest completed checkpoint or savepoint.
        is_current: Whether the report is current.
        at_ms: The time of the report.
    """
    gauges = _gauges(metrics if is_current else None)
    waiting = {"lag_records": None, "lag_records_at_ms": None} | waiting_records(before, metrics, at_ms)
    return FiguresAnswer(**gauges, **waiting, **added_totals(before, metrics), state_size=state_size)


def _gauges(metrics: DriverMetrics | None) -> dict[str, Any]:
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
