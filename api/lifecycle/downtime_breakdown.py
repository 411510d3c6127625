"""The downtime breakdown of a change.

It also has the job's metrics before and after the change. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.vocabulary import ChangePhase, DowntimeStep, RescaleMode

from .gauges import gauges_of
from .job_totals import NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from keyscale.db.models import Attempt, Operation

SETTLED_MS = 60_000
"""The metrics after a change are taken when the job has caught up for this long."""
_BUSY_WITHIN_MS = 10_000  # a job without a batch for this long had no input, which does not count as downtime
_COMPARED = ("input_rate", "processed_rate", "busy_ratio", "batch_duration_ms", "lag_records", "lag_ms")
_TIMES = ("launched_at_ms", "attached_at_ms", "restored_at_ms", "first_commit_at_ms")


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step and its time."""

    name: DowntimeStep
    started_at_ms: int
    ended_at_ms: int


def stopped_at_ms(old: Attempt, phases: Sequence[Mapping[str, Any]], at_ms: int) -> int:
    """Returns when a changed job stopped processing.

    It stopped at its last commit or, without input, at the command to stop.

    Args:
        old: The attempt that ran it.
        phases: The change's phases so far.
        at_ms: When the attempt ended.
    """
    commanded_at_ms = next(
        (int(phase["started_at_ms"]) for phase in phases if phase["phase"] == ChangePhase.SAVEPOINT), at_ms
    )
    last_ms = old.last_commit_at_ms
    if last_ms is None:
        return commanded_at_ms
    if (old.metrics or {}).get("waits_for_input"):
        return max(last_ms, commanded_at_ms)
    return last_ms if last_ms > commanded_at_ms - _BUSY_WITHIN_MS else commanded_at_ms


def timed_steps(change: Operation) -> Iterator[TimedStep]:
    """Yields the known steps of a change.

    Each step begins where the previous step ended.
    """
    if change.stopped_at_ms is None:
        return
    if change.rescale_mode is RescaleMode.LIVE:
        yield from _steps_in_order(change.stopped_at_ms, _ends_of_live(change))
        return
    times, begun = change.times or {}, {phase["phase"]: phase["started_at_ms"] for phase in change.phases}
    restore_at_ms = begun.get(ChangePhase.RESTORE)
    ends = {
        DowntimeStep.SAVEPOINT: begun.get(ChangePhase.STOP),
        DowntimeStep.STOP: restore_at_ms,
        DowntimeStep.TRIAL: begun.get(ChangePhase.ROLL_BACK),
        DowntimeStep.SUBMIT: times.get("launched_at_ms"),
        DowntimeStep.SESSION: times.get("attached_at_ms"),
        DowntimeStep.RESTORE: times.get("restored_at_ms"),
        DowntimeStep.FIRST_BATCH: times.get("first_commit_at_ms"),
        DowntimeStep.CAUGHT_UP: change.caught_up_at_ms,
    }
    yield from _steps_in_order(change.stopped_at_ms, ends)


def _ends_of_live(change: Operation) -> dict[DowntimeStep, int | None]:
    switched_at_ms = (change.live or {}).get("switched_at_ms")
    return {
        DowntimeStep.HANDOVER: switched_at_ms,
        DowntimeStep.FIRST_BATCH: None if change.resumed_at_ms == switched_at_ms else change.resumed_at_ms,
        DowntimeStep.CAUGHT_UP: change.caught_up_at_ms,
    }


def _steps_in_order(at_ms: int, ends: Mapping[DowntimeStep, int | None]) -> Iterator[TimedStep]:
    for name, end_ms in ends.items():
        if end_ms is not None:
            yield TimedStep(name, at_ms, max(at_ms, end_ms))
            at_ms = max(at_ms, end_ms)


def prepared_ms(change: Operation) -> int | None:
    """Returns how long a change prepared beside the batches.

    It prepared a new driver, or the new subtasks. Returns None if unknown.
    """
    if change.rescale_mode is RescaleMode.LIVE:
        began, prepared = ((change.live or {}).get(name) for name in ("began_at_ms", "prepared_at_ms"))
        return None if began is None or prepared is None else max(0, int(prepared - began))
    times = change.times or {}
    launched, attached = times.get("launched_at_ms"), times.get("attached_at_ms")
    if launched is None or attached is None or change.stopped_at_ms is None:
        return None
    return max(0, int(min(attached, change.stopped_at_ms) - launched))


def times_of(attempt: Attempt | None) -> dict[str, int | None] | None:
    """Returns the stored form of the times of a change's attempt."""
    return None if attempt is None else {name: getattr(attempt, name) for name in _TIMES}


def metrics_of_change(reported: Mapping[str, Any] | None) -> dict[str, float | None] | None:
    """Returns the metrics that a change keeps of a driver's report.

    Returns None if the driver has run no batch.
    """
    metrics = DriverMetrics.model_validate(reported or {})
    if not metrics.batches:
        return None
    known = {**gauges_of(metrics), "lag_records": metrics.pending_records}
    return {name: known[name] for name in _COMPARED}


def usual_waiting(figures: Mapping[str, Any]) -> int | None:
    """Returns how many records waited at most before a change.

    Returns None if unknown. The records that arrive while a batch runs wait as well, and the number was taken at any
    moment of a batch.
    """
    waiting = figures.get("lag_records")
    if waiting is None:
        return None
    arrived = (figures.get("input_rate") or 0.0) * (figures.get("batch_duration_ms") or 0.0) / 1000
    return int(min(waiting + arrived, NUMBER_MAX))


def note_progress(attempt: Attempt, metrics: DriverMetrics, at_ms: int) -> bool:
    """Notes that an attempt has caught up or settled.

    Returns whether that is new.

    It has settled when it has caught up for a while. File sources never report how many records are left, so a job with
    steady input from files counts as settled a while after its first batch.
    """
    if attempt.caught_up_at_ms is None and _has_caught_up(attempt, metrics):
        attempt.caught_up_at_ms = at_ms
        return True
    since_ms = attempt.caught_up_at_ms
    if since_ms is None and metrics.pending_records is None:
        since_ms = attempt.first_commit_at_ms
    if attempt.settled_at_ms is None and since_ms is not None and at_ms - since_ms >= SETTLED_MS:
        attempt.settled_at_ms = at_ms
        return True
    return False


def _has_caught_up(attempt: Attempt, metrics: DriverMetrics) -> bool:
    if attempt.restored_at_ms is None:
        return False
    if metrics.waits_for_input:
        return True
    left = metrics.pending_records
    return attempt.first_commit_at_ms is not None and left is not None and left <= (attempt.lag_before or 0)
