"""A job's metrics, from its driver's report and its latest checkpoint.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lifecycle.gauges import gauges_of
from ..lifecycle.job_totals import added_totals, waiting_records
from .schemas.job_metrics import JobMetricsAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.jobs.protocol.messages import DriverMetrics


def job_metrics_of(
    metrics: DriverMetrics | None,
    before: Mapping[str, Any] | None,
    state_size: int | None,
    *,
    is_current: bool,
    at_ms: int | None,
) -> JobMetricsAnswer:
    """Returns a job's metrics.

    Args:
        metrics: The last report of the driver of the attempt that runs the job, or else of its last attempt.
        before: What is known of the job before that attempt: its counters, and the records that waited.
        state_size: The state size of its latest completed checkpoint or savepoint.
        is_current: Whether the report is current.
        at_ms: The time of the report.
    """
    gauges = gauges_of(metrics if is_current else None)
    waiting = {"lag_records": None, "lag_records_at_ms": None} | waiting_records(before, metrics, at_ms)
    return JobMetricsAnswer(**gauges, **waiting, **added_totals(before, metrics), state_size=state_size)
