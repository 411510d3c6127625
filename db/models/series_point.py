"""The table of the points of jobs' series."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class SeriesPoint(Base):
    """A job's metrics in one step of time; None where unknown.

    `samples` is the weight of the means of batches, `busy_samples` the weight of `busy_ratio`, which is known even
    before the first batch.

    The rows of one job and step width are a ring: the slot of a time is its number modulo the length of the ring, so
    that new points replace the oldest points, and the number of rows is bounded. The table has no foreign key, because
    its check would lock the job within a transaction that has locked the attempt.
    """

    __tablename__ = "series_points"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    step_ms: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at_ms: Mapped[int]
    samples: Mapped[int]
    busy_samples: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    input_records: Mapped[int | None]
    output_records: Mapped[int | None]
    late_records: Mapped[int | None]
    dead_letters: Mapped[int | None]
    lost_records: Mapped[int | None]
    processed_rate: Mapped[float | None]
    busy_ratio: Mapped[float | None]
    batch_duration_ms: Mapped[float | None]
    lag_records: Mapped[int | None]
    lag_ms: Mapped[int | None]
    watermark_ms: Mapped[int | None]
    state_size: Mapped[int | None]
    checkpointed_size: Mapped[int | None]
    checkpoint_duration_ms: Mapped[int | None]
    checkpoint_duration_min_ms: Mapped[int | None]
    checkpoint_duration_sum_ms: Mapped[int | None]
    checkpoints_completed: Mapped[int | None]
    checkpoints_failed: Mapped[int | None]
    checkpointed_bytes: Mapped[int | None]
    restarts: Mapped[int | None]
