"""The metrics of a job, each with one meaning everywhere."""

from __future__ import annotations

from pydantic import Field

from .base import Answer


class FiguresAnswer(Answer):
    """A job's current metrics.

    An unknown metric, such as a rate of a job that does not run, is null. Counters and waiting records stay.
    """

    input_rate: float | None = Field(description="Records read per second over the last minute, with waits.")
    processed_rate: float | None = Field(description="Processed records per second while batches run.")
    busy_ratio: float | None = Field(description="Share of the time in which batches run.")
    batch_duration_ms: float | None = Field(description="Time to run and commit a batch.")
    lag_records: int | None = Field(
        description="Records in the sources that no committed batch has; the last known number if the job does not run;"
        " null if the sources cannot count."
    )
    lag_records_at_ms: int | None = Field(description="Time at which lag_records was counted; null without a number.")
    lag_ms: int | None = Field(
        description="How far the latest event of the slowest operator was behind the clock when its batch was"
        " committed; null without event time, and if events are ahead of the clock."
    )
    watermark_ms: int | None = Field(description="Event time that all operators with a watermark have reached.")
    state_size: int | None = Field(
        description="Bytes of the whole state in the latest completed checkpoint or savepoint; null before the first."
    )
    input_records: int = Field(description="Records read since the job was created.")
    output_records: int = Field(description="Records emitted since the job was created.")
    late_records: int = Field(description="Late records, and records without event time, since the job was created.")
    dead_letters: int = Field(
        description="Records that functions failed on, and rows that the systems of sinks would have refused, which"
        " became dead letters, since the job was created."
    )
    lost_records: int = Field(description="Records that sources lost, since the job was created.")
