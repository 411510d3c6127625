"""Series of a job's metrics, sampled from reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import itemgetter, mul
from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, events, series
from keyscale.db.repositories.series import RETENTIONS, Retention
from keyscale.metrics import (
    GAUGE,
    HISTOGRAM,
    JOB_METRICS,
    LARGEST,
    LATEST,
    MEAN,
    OBSERVED,
    RATE,
    SERIES,
    SHOWN_SERIES,
    SMALLEST,
    SUM,
    MetricKind,
)
from keyscale.user_series import USER_SERIES_MAX
from keyscale.vocabulary import CHANGES, AnnotationKind

from ..errors import RequestInvalidError
from ..jobs.job_metrics import job_metrics_of
from ..jobs.jobs import require_job_id
from ..lifecycle.job_totals import known_before, waiting_records
from . import user_metrics
from .schemas.series import AnnotationAnswer, SeriesAnswer, SeriesName
from .schemas.user_metric import UserSeriesAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.models import Attempt, Checkpoint, Event, SeriesPoint
    from keyscale.jobs.protocol.messages import DriverMetrics, Heartbeat
    from keyscale.metrics import Fold, Metric

    from ..control_plane.context import Context

SAMPLE_MS = RETENTIONS[0].step_ms
SPAN_MS = 3_600_000
ANNOTATIONS_MAX = 500
_RATES = {metric.name: metric.source for metric in SHOWN_SERIES if metric.fold is RATE}
_SAMPLED = tuple(metric.name for metric in JOB_METRICS if metric in SERIES and metric.scope is not OBSERVED)
# A change without an annotation of its own is a new driver of the same program.
_OF_CHANGE = {kind: AnnotationKind.__members__.get(kind, AnnotationKind.RESTART) for kind in CHANGES}
_ANNOTATIONS = {
    "JOB_STARTED": AnnotationKind.START,
    "JOB_STOPPED": AnnotationKind.STOP,
    "JOB_FINISHED": AnnotationKind.STOP,
    "JOB_FAILED": AnnotationKind.FAILURE,
    "ATTEMPT_REPLACED": AnnotationKind.RESTART,
    "RUN_FAILED": AnnotationKind.RESTART,
    **{f"{kind}_{how}": AnnotationKind.ROLLBACK for kind in _OF_CHANGE for how in ("ROLLED_BACK", "FAILED")},
    **{f"{kind}_{how}": _OF_CHANGE[kind] for kind in _OF_CHANGE for how in ("COMPLETED", "CANCELLED")},
}
_FOLDS: dict[Fold | None, Callable[[list[float]], float]] = {
    LATEST: itemgetter(-1),
    LARGEST: max,
    SMALLEST: min,
    SUM: sum,
}
"""How the values of one step become one; the database merges values in the same way."""


def is_sample_due(attempt: Attempt, message: Heartbeat, at_ms: int) -> bool:
    """Returns whether the metrics of a heartbeat are stored.

    They are if it is the first heartbeat of a step, of its attempt or of another state.
    """
    is_first = attempt.metrics is None or begins_step(attempt.heartbeat_at_ms, at_ms)
    return is_first or attempt.driver_state != message.state


def begins_step(last_ms: int | None, at_ms: int) -> bool:
    """Returns whether a heartbeat is the first heartbeat of a step."""
    return last_ms is None or last_ms // SAMPLE_MS != at_ms // SAMPLE_MS


def begin_counting(session: Session, attempt: Attempt) -> None:
    """Sets the job's counters before an attempt.

    The attempt's driver counts from zero; with these counters the job's counters continue.
    """
    if attempt.metrics is None:  # until now the attempt before it may have counted on
        attempt.totals_before = known_before(session, attempt.job_id, attempt.number)


def sample(
    session: Session,
    job_id: str,
    metrics: DriverMetrics,
    before: Mapping[str, Any] | None,
    *,
    is_current: bool,
    at_ms: int,
) -> None:
    """Stores the metrics that an attempt has just reported.

    Args:
        session: The transaction.
        job_id: The job.
        metrics: The metrics.
        before: The job's counters before the attempt.
        is_current: Whether the attempt runs the job.
        at_ms: The time of the report.
    """
    figures = job_metrics_of(metrics, before, None, is_current=is_current, at_ms=at_ms)
    kept = figures.model_dump(include=set(_SAMPLED))
    kept["lag_records"] = None if metrics.lag_age_ms else waiting_records(None, metrics, at_ms).get("lag_records")
    if user := user_metrics.sampled(metrics, is_current=is_current):
        kept["user_metrics"] = user
    series.store(session, job_id, at_ms, kept)


def note_checkpoint(session: Session, checkpoint: Checkpoint, at_ms: int) -> None:
    """Stores the metrics of a completed checkpoint or savepoint."""
    values = {
        "state_size": checkpoint.state_size,
        "checkpointed_size": checkpoint.checkpointed_size,
        "checkpoint_duration_ms": checkpoint.end_to_end_duration,
        "checkpoint_duration_min_ms": checkpoint.end_to_end_duration,
        "checkpoint_duration_sum_ms": checkpoint.end_to_end_duration,
        "checkpointed_bytes": checkpoint.checkpointed_size,
        "checkpoints_completed": 1,
    }
    series.store(session, checkpoint.job_id, at_ms, values)


def note_failed_checkpoint(session: Session, job_id: str, at_ms: int) -> None:
    """Counts a checkpoint or savepoint that has just failed."""
    series.store(session, job_id, at_ms, {"checkpoints_failed": 1})


def take_back_failed_checkpoint(session: Session, job_id: str, at_ms: int) -> None:
    """Takes back the count of a failed checkpoint or savepoint.

    A late report shows that it did not fail.
    """
    series.store(session, job_id, at_ms, {"checkpoints_failed": -1})


def note_restart(session: Session, job_id: str, at_ms: int) -> None:
    """Counts a restart that a driver has made itself."""
    series.store(session, job_id, at_ms, {"restarts": 1})


@dataclass(frozen=True, slots=True)
class Span:
    """The time to show.

    Attributes:
        from_ms: Its beginning; None: an hour before its end.
        to_ms: Its end; None: now.
        points: The approximate maximum number of points, from which the step is chosen.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    points: int = 360


def show(context: Context, reference: str, span: Span, names: Collection[SeriesName]) -> SeriesAnswer:
    """Shows series of a job, with the events of that time.

    Args:
        context: The control plane.
        reference: The job.
        span: The time to show; times before the retention are left out.
        names: The requested series; none: all.

    Raises:
        JobNotFoundError: The job does not exist.
        RequestInvalidError: The end is before the beginning.
    """
    now = now_ms()
    end_ms = now if span.to_ms is None else min(span.to_ms, now)
    begin_ms = max(0, end_ms - SPAN_MS) if span.from_ms is None else span.from_ms
    if begin_ms > end_ms:
        raise RequestInvalidError("from_ms: it is after to_ms, or after the present time")
    begin_ms = max(begin_ms, min(end_ms, now - RETENTIONS[-1].span_ms))
    retention, step_ms = choose_step(begin_ms, end_ms, span.points, now)
    first_ms = begin_ms - begin_ms % step_ms
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        rows = series.read(session, job_id, retention, first_ms - step_ms, end_ms)
        happened = events.between(session, job_id, begin_ms, end_ms, kinds=sorted(_ANNOTATIONS), limit=ANNOTATIONS_MAX)
        failed = checkpoints.failed_between(session, job_id, begin_ms, end_ms, limit=ANNOTATIONS_MAX)
    times = list(range(first_ms, end_ms + 1, step_ms))
    chosen = list(SeriesName) if not names else sorted(set(names), key=list(SeriesName).index)
    steps = merged(rows, step_ms)
    counted = counted_at(rows, step_ms, now)
    annotations = [*map(_annotation_of_event, happened), *map(_annotation_of_checkpoint, failed)]
    return SeriesAnswer(
        from_ms=begin_ms,
        to_ms=end_ms,
        step_ms=step_ms,
        at_ms=times,
        series={name: _values(steps, times, step_ms, counted, name) for name in chosen},
        user=_user_series(rows, steps, times, step_ms, counted) if not names else [],
        annotations=sorted(annotations, key=lambda annotation: annotation.at_ms)[-ANNOTATIONS_MAX:],
    )


def choose_step(from_ms: int, to_ms: int, points: int, now_ms: int) -> tuple[Retention, int]:
    """Returns the retention that still has a whole span, and the step.

    The step gives about the requested number of points.
    """
    retention = next((retention for retention in RETENTIONS if now_ms - from_ms <= retention.span_ms), RETENTIONS[-1])
    return retention, retention.step_ms * max(1, -(-(to_ms - from_ms) // (retention.step_ms * points)))


def merged(rows: Sequence[SeriesPoint], step_ms: int) -> dict[int, dict[str, Any]]:
    """Merges points into steps of at least their length.

    Returns the values of each step by its time.
    """
    steps: dict[int, list[SeriesPoint]] = {}
    for row in rows:
        steps.setdefault(row.at_ms - row.at_ms % step_ms, []).append(row)
    return {
        at_ms: {metric.name: _merged_value(metric, members) for metric in SERIES} | _user_values(members)
        for at_ms, members in steps.items()
    }


def _user_values(members: Sequence[SeriesPoint]) -> dict[str, float]:
    """Returns the latest values of users' metrics, by key.

    The count of a histogram has a key of its own.
    """
    latest = next((row.user_metrics for row in reversed(members) if row.user_metrics), {})
    counts = {_count_key(key): values[1] for key, values in latest.items() if len(values) > 1}
    return {**{key: values[0] for key, values in latest.items()}, **counts}


def _count_key(key: str) -> str:
    return f"{key} count"


def _user_series(
    rows: Sequence[SeriesPoint],
    steps: dict[int, dict[str, Any]],
    times: Sequence[int],
    step_ms: int,
    counted: dict[int, int],
) -> list[UserSeriesAnswer]:
    found = []
    for key in sorted({key for row in rows for key in row.user_metrics or ()})[:USER_SERIES_MAX]:
        operator, name, kind, labels = json.loads(key)
        values: list[float | None]
        if kind == GAUGE:
            values = [steps.get(at_ms, {}).get(key) for at_ms in times]
        else:
            values = [_rate(steps, counted, at_ms - step_ms, at_ms, key) for at_ms in times]
        if kind == HISTOGRAM:
            counts = [_rate(steps, counted, at_ms - step_ms, at_ms, _count_key(key)) for at_ms in times]
            values = [
                grown / count if grown is not None and count else None
                for grown, count in zip(values, counts, strict=True)
            ]
        given = {"operator": operator, "name": name, "kind": MetricKind(kind).name, "labels": labels, "values": values}
        found.append(UserSeriesAnswer.model_validate(given))
    return found


def _merged_value(metric: Metric, members: Sequence[SeriesPoint]) -> float | None:
    known = [row for row in members if getattr(row, metric.name) is not None]
    values: list[float] = [getattr(row, metric.name) for row in known]
    if not values:
        return None
    if metric.time_fold is not MEAN:
        return _FOLDS[metric.time_fold](values)
    weights = [getattr(row, metric.weighed_by) for row in known]
    whole = sum(weights)
    return sum(map(mul, values, weights)) / whole if whole else None


def counted_at(rows: Sequence[SeriesPoint], step_ms: int, now: int) -> dict[int, int]:
    """Returns the times at which the counters of each step were sampled.

    A sample is taken when a finest step begins.
    """
    times: dict[int, int] = {}
    for row in rows:
        if row.input_records is not None:
            last_ms = min(row.at_ms + row.step_ms - SAMPLE_MS, now - now % SAMPLE_MS)
            at_ms = row.at_ms - row.at_ms % step_ms
            times[at_ms] = max(last_ms, times.get(at_ms, last_ms))
    return times


def _values(
    steps: dict[int, dict[str, Any]], times: Sequence[int], step_ms: int, counted: dict[int, int], name: SeriesName
) -> list[float | None]:
    if (counter := _RATES.get(name)) is None:
        return [steps[at_ms][name] if at_ms in steps else None for at_ms in times]
    return [_rate(steps, counted, at_ms - step_ms, at_ms, counter) for at_ms in times]


def _rate(
    steps: dict[int, dict[str, Any]], counted: dict[int, int], before_ms: int, at_ms: int, counter: str
) -> float | None:
    """Returns the records per second between two steps' samples.

    None next to a step without values.
    """
    if before_ms not in counted or at_ms not in counted:
        return None
    before: float | None = steps[before_ms].get(counter)
    here: float | None = steps[at_ms].get(counter)
    passed_ms = counted[at_ms] - counted[before_ms]
    if before is None or here is None or passed_ms <= 0:
        return None
    return max(0.0, (here - before) * 1000 / passed_ms)


def _annotation_of_event(event: Event) -> AnnotationAnswer:
    kind, operation_id = _ANNOTATIONS[event.kind], event.details.get("operation_id")
    return AnnotationAnswer(at_ms=event.at_ms, kind=kind, text=event.message, id=operation_id)


def _annotation_of_checkpoint(checkpoint: Checkpoint) -> AnnotationAnswer:
    noun = "savepoint" if checkpoint.is_savepoint else "checkpoint"
    return AnnotationAnswer(
        at_ms=checkpoint.trigger_timestamp,
        kind=AnnotationKind.CHECKPOINT_FAILED,
        text=f"{noun} {checkpoint.checkpoint_id} failed",
        id=str(checkpoint.checkpoint_id),
    )
