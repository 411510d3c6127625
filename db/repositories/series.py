"""Queries on the time series of jobs' metrics.

They are kept in rings of steps that are coarser for older times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import case, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from ..models import SeriesPoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.dialects.postgresql import Insert
    from sqlalchemy.orm import Session
    from sqlalchemy.sql.base import ReadOnlyColumnCollection
    from sqlalchemy.sql.elements import KeyedColumnElement


@dataclass(frozen=True, slots=True)
class Ring:
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


DAYS = Ring(86_400_000, 732)
RINGS = (Ring(10_000, 361), Ring(60_000, 1_441), Ring(900_000, 2_881), DAYS)
"""An hour in 10 s steps, a day in minutes, longer times coarser.

30 days have steps of 15 minutes, two years have steps of a day.
"""

LATEST = ("watermark_ms", "state_size")
"""The latest of several values in a step counts."""
COUNTERS = ("input_records", "output_records", "late_records", "dead_letters", "lost_records")
LARGEST = (*COUNTERS, "lag_records", "lag_ms", "checkpointed_size", "checkpoint_duration_ms")
"""The largest value counts; counters only grow."""
SMALLEST = ("checkpoint_duration_min_ms",)
"""The smallest value counts."""
SUMMED = (
    "checkpoints_completed",
    "checkpoints_failed",
    "checkpointed_bytes",
    "checkpoint_duration_sum_ms",
    "restarts",
)
"""The values are added."""
AVERAGED = {"processed_rate": "samples", "batch_duration_ms": "samples", "busy_ratio": "busy_samples"}
"""Their mean counts, weighted by the column of samples named here."""
SUM_MAX = 2**61
"""The limit of sums, so that two can be added."""
_POINTS = cast("Table", SeriesPoint.__table__)
COLUMNS = (*LATEST, *LARGEST, *SMALLEST, *SUMMED, *AVERAGED)


def _merged(new: ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    """Returns the columns of a slot in use.

    They are merged if the slot holds the same step, and replaced otherwise.
    """
    old = _POINTS.c
    is_same = old.at_ms == new.at_ms
    merged: dict[str, ColumnElement[Any]] = {name: func.coalesce(new[name], old[name]) for name in LATEST}
    merged |= {name: func.greatest(new[name], old[name]) for name in LARGEST}
    merged |= {name: func.least(new[name], old[name]) for name in SMALLEST}
    # A job that reports arbitrary numbers fills its columns, and statements do not fail.
    sums = {name: old[name] + new[name] for name in SUMMED}
    merged |= {
        name: case((total > SUM_MAX, SUM_MAX), else_=func.coalesce(total, new[name], old[name]))
        for name, total in sums.items()
    }
    merged |= {
        name: func.coalesce(
            (old[name] * old[weight] + new[name] * new[weight]) / func.nullif(old[weight] + new[weight], 0),
            new[name],
            old[name],
        )
        for name, weight in AVERAGED.items()
    }
    merged |= {weight: old[weight] + new[weight] for weight in AVERAGED.values()}
    columns = {name: case((is_same, value), else_=new[name]) for name, value in merged.items()}
    return {**columns, "at_ms": new.at_ms}


def _upsert() -> Insert:
    statement = insert(_POINTS)
    return statement.on_conflict_do_update(
        index_elements=[_POINTS.c.job_id, _POINTS.c.step_ms, _POINTS.c.slot],
        set_=_merged(statement.excluded),
        where=_POINTS.c.at_ms <= statement.excluded.at_ms,
    )


_UPSERT = _upsert()  # built once, as building and compiling it takes ten times as long as its execution


def store(session: Session, job_id: str, at_ms: int, values: Mapping[str, Any]) -> None:
    """Adds values to the steps of a time, in one round trip.

    A value from before a ring's begin is ignored.

    Args:
        session: The transaction.
        job_id: The job.
        at_ms: The time of the values.
        values: Values by column; a missing value is unknown.
    """
    rows = [
        {
            **dict.fromkeys(COLUMNS),
            **values,
            "job_id": job_id,
            "step_ms": ring.step_ms,
            "slot": at_ms // ring.step_ms % ring.slots,
            "at_ms": at_ms - at_ms % ring.step_ms,
            "samples": int(values.get("processed_rate") is not None),
            "busy_samples": int(values.get("busy_ratio") is not None),
        }
        for ring in RINGS
    ]
    session.execute(_UPSERT, rows)


def read(session: Session, job_id: str, ring: Ring, from_ms: int, to_ms: int) -> Sequence[SeriesPoint]:
    """Returns a job's points of a ring within an inclusive interval.

    They are in the order of time.
    """
    return session.scalars(
        select(SeriesPoint)
        .where(
            SeriesPoint.job_id == job_id,
            SeriesPoint.step_ms == ring.step_ms,
            SeriesPoint.at_ms.between(from_ms, to_ms),
        )
        .order_by(SeriesPoint.at_ms)
    ).all()


def remove(session: Session, job_id: str) -> None:
    """Deletes a job's points, a few thousand at most."""
    session.execute(delete(SeriesPoint).where(SeriesPoint.job_id == job_id))
