"""Queries on the time series of jobs' metrics.

Their steps are coarser for older times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, delete, select, text
from sqlalchemy.dialects.postgresql import JSONB

from keyscale.metrics import LARGEST, LATEST, MEAN, SERIES, SMALLEST, SUM

from ..models import SeriesPoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import TextClause
    from sqlalchemy.orm import Session

    from keyscale.metrics import Fold


@dataclass(frozen=True, slots=True)
class Retention:
    """The points of one step width.

    Attributes:
        step_ms: The time between two points.
        slots: The number of points kept.
    """

    step_ms: int
    slots: int

    @property
    def span_ms(self) -> int:
        return self.step_ms * self.slots


DAYS = Retention(86_400_000, 732)
RETENTIONS = (Retention(10_000, 361), Retention(60_000, 1_441), Retention(900_000, 2_881), DAYS)
"""An hour in 10 s steps, a day in minutes, longer times coarser.

30 days have steps of 15 minutes, two years have steps of a day.
"""

SUM_MAX = 2**61
"""The limit of sums, so that two can be added."""
_USER_METRICS = "user_metrics"
COLUMNS = (*(metric.name for metric in SERIES), _USER_METRICS)
_WEIGHTS = tuple(sorted({metric.weighed_by for metric in SERIES if metric.time_fold is MEAN}, reverse=True))
_FOLDS: dict[Fold | None, str] = {
    LATEST: "coalesce(excluded.{0}, old.{0})",
    LARGEST: "greatest(excluded.{0}, old.{0})",
    SMALLEST: "least(excluded.{0}, old.{0})",
    # A job that reports arbitrary numbers fills its columns, and statements do not fail.
    SUM: f"least(coalesce(old.{{0}} + excluded.{{0}}, excluded.{{0}}, old.{{0}}), {SUM_MAX})",
    MEAN: "coalesce((old.{0} * old.{1} + excluded.{0} * excluded.{1}) / nullif(old.{1} + excluded.{1}, 0),"
    " excluded.{0}, old.{0})",
}
"""How the values of one step are merged; {1} is the column of samples."""
_MERGED = {metric.name: _FOLDS[metric.time_fold].format(metric.name, metric.weighed_by) for metric in SERIES}
_MERGED[_USER_METRICS] = _FOLDS[LATEST].format(_USER_METRICS)


@cache
def _upsert(given: tuple[str, ...]) -> TextClause:
    """Returns the statement that adds given values to each retention.

    A slot in use is merged if it holds the same step, and replaced otherwise.

    The point comes as one document: a parameter for each value and retention would cost more than the rest. psycopg
    splits a statement of more than 4,096 characters anew at each execution, so only the given values are merged. The
    others are kept together: the sub-select is empty in a slot of another step.
    """
    retentions = ", ".join(f"({retention.step_ms}, {retention.slots})" for retention in RETENTIONS)
    inserted = (*_WEIGHTS, *given)
    changed = {name: f"{_MERGED[name]} ELSE excluded.{name}" for name in given}
    changed |= {name: f"old.{name} + excluded.{name} ELSE excluded.{name}" for name in _WEIGHTS}
    merged = [f"{name} = CASE WHEN old.at_ms = excluded.at_ms THEN {value} END" for name, value in changed.items()]
    kept = [name for name in COLUMNS if name not in given]
    if kept:
        before = ", ".join(f"old.{name}" for name in kept)
        merged.append(f"({', '.join(kept)}) = (SELECT {before} WHERE old.at_ms = excluded.at_ms)")
    return text(
        f"""
INSERT INTO series_points AS old (job_id, step_ms, slot, at_ms, {", ".join(inserted)})
SELECT point.job_id, kept.step_ms, :now_ms / kept.step_ms % kept.slots, :now_ms - :now_ms % kept.step_ms,
    {", ".join(f"point.{name}" for name in inserted)}
FROM (VALUES {retentions}) AS kept (step_ms, slots),
    jsonb_populate_record(CAST(NULL AS series_points), :point) AS point
ON CONFLICT (job_id, step_ms, slot) DO UPDATE SET at_ms = excluded.at_ms, {", ".join(merged)}
WHERE old.at_ms <= excluded.at_ms
"""  # noqa: S608 - the names of columns are constants
    ).bindparams(bindparam("now_ms", type_=BigInteger), bindparam("point", type_=JSONB))


def store(session: Session, job_id: str, at_ms: int, values: Mapping[str, Any]) -> None:
    """Adds values to the steps of a time, in one statement.

    A value from before a retention's begin is ignored.

    Args:
        session: The transaction.
        job_id: The job.
        at_ms: The time of the values.
        values: Values by column; a missing value is unknown.
    """
    weights = dict.fromkeys(_WEIGHTS, 0)
    for metric in SERIES:
        if metric.time_fold is MEAN and values.get(metric.name) is not None:
            weights[metric.weighed_by] = 1
    point = {**values, **weights, "job_id": job_id}
    session.connection().execute(_upsert(tuple(sorted(values))), {"point": point, "now_ms": at_ms})


def read(session: Session, job_id: str, retention: Retention, from_ms: int, to_ms: int) -> Sequence[SeriesPoint]:
    """Returns a job's points of a retention within an inclusive interval.

    They are in the order of time.
    """
    return session.scalars(
        select(SeriesPoint)
        .where(
            SeriesPoint.job_id == job_id,
            SeriesPoint.step_ms == retention.step_ms,
            SeriesPoint.at_ms.between(from_ms, to_ms),
        )
        .order_by(SeriesPoint.at_ms)
    ).all()


def remove(session: Session, job_id: str) -> None:
    """Deletes a job's points, a few thousand at most."""
    session.execute(delete(SeriesPoint).where(SeriesPoint.job_id == job_id))
