"""The days of a job."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from ...shapes import Answer


class DayAnswer(Answer):
    """A day of a job, in UTC. An unknown figure is null."""

    day: date
    input_records: int | None = Field(description="Records that the job has read on this day.")
    output_records: int | None = Field(description="Records that it has written.")
    restarts: int = Field(description="How often it was started again after a failure.")
    checkpoints_completed: int = Field(description="Checkpoints and savepoints.")
    checkpoints_failed: int = Field(description="Failed checkpoints, also by the end of their driver.")
    checkpointed_bytes: int = Field(description="Bytes uploaded for completed checkpoints.")
    checkpoint_duration_min_ms: int | None
    checkpoint_duration_avg_ms: int | None
    checkpoint_duration_max_ms: int | None
    state_size: int | None = Field(description="Bytes of the whole state, as of the last checkpoint or savepoint.")
    lag_ms_max: int | None = Field(description="The largest lag in event time.")


class DayList(Answer):
    """The known days of a job, newest first."""

    days: list[DayAnswer]
