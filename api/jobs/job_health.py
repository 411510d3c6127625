"""A job's health: its last failure, faults, and a waiting start.

The driver reports the faults. The faults do not stop the job. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.state.doors.objects import StoreUnavailableError

from .schemas.job import HealthItemAnswer

if TYPE_CHECKING:
    from keyscale.jobs.protocol.messages import DriverMetrics, Failure

    from .start_waits import StartWait


def unsettled_failure(metrics: DriverMetrics, last_commit_at_ms: int | None) -> Failure | None:
    """Returns the failure that the restarted driver has not yet recovered from.

    It has recovered once it has committed a batch.
    """
    if metrics.last_failure is None or not metrics.failures.times_ms:
        return None
    is_over = last_commit_at_ms is not None and last_commit_at_ms >= metrics.failures.times_ms[-1]
    return None if is_over else metrics.last_failure


def waiting_start(wait: StartWait) -> HealthItemAnswer:
    """Returns the item of a start that waits for its turn."""
    return HealthItemAnswer(
        code="START_WAITS",
        message=f"the start waits for its turn, in place {wait.place} of {wait.count}: other drivers start first",
        since_ms=wait.since_ms,
        advice="KEYSCALE_STARTS_AT_ONCE sets how many drivers start at once on a host.",
    )


def health_of(metrics: DriverMetrics) -> list[HealthItemAnswer]:
    """Returns one item per fault."""
    items = []
    if metrics.store_away_since_ms is not None:
        items.append(
            HealthItemAnswer(
                code=StoreUnavailableError.code,
                message="the object store does not answer; batches wait",
                since_ms=metrics.store_away_since_ms,
                advice=StoreUnavailableError.advice,
            )
        )
    if (sink := metrics.sink_outage) is not None:
        items.append(
            HealthItemAnswer(
                code="SINK_UNAVAILABLE",
                message=f"sink {sink.uid} does not answer; batches wait: {sink.reason}",
                since_ms=sink.since_ms,
            )
        )
    if metrics.lost_records_since_ms is not None:
        items.append(
            HealthItemAnswer(
                code="SOURCE_RECORDS_LOST",
                message=f"the job has skipped {metrics.lost_records} records that its sources had lost",
                since_ms=metrics.lost_records_since_ms,
                advice="Keep records for longer than the job may lag or be stopped.",
            )
        )
    clean_up = metrics.clean_up
    if clean_up.failure is not None and clean_up.failing_since_ms is not None:
        items.append(
            HealthItemAnswer(
                code=clean_up.failure.code,
                message=f"old checkpoints are not deleted: {clean_up.failure.message}",
                since_ms=clean_up.failing_since_ms,
                advice=clean_up.failure.advice,
            )
        )
    return items
