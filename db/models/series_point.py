"""The table of the points of jobs' series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Float, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.metrics import SERIES

from ..base import Base


class SeriesPoint(Base):
    """A job's metrics in one step of time; None where unknown.

    Each metric with a series has a column, by its declaration in `keyscale.metrics`; `migrate` adds the columns.

    `samples` is the weight of the means of batches, `busy_samples` the weight of `busy_ratio`, which is known even
    before the first batch. `user_metrics` has the values of the metrics of users' functions, by series.

    The rows of one job and step width are a ring buffer: the slot of a time is its number modulo the number of slots,
    so that new points replace the oldest points, and the number of rows is bounded. The table has no foreign key,
    because its check would lock the job within a transaction that has locked the attempt.
    """

    __tablename__ = "series_points"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    step_ms: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at_ms: Mapped[int]
    samples: Mapped[int]
    busy_samples: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    user_metrics: Mapped[dict[str, list[float]] | None] = mapped_column(JSONB)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


for metric in SERIES:
    setattr(SeriesPoint, metric.name, mapped_column(BigInteger if metric.is_whole else Float, nullable=True))
