"""The metrics that users' functions declare."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...shapes import Answer


class BucketAnswer(Answer):
    """A bucket of a histogram."""

    up_to: float | None = Field(description="Its upper bound, inclusive; null for the last bucket.")
    count: int = Field(description="Observations in this bucket, without the buckets before.")


class HistogramAnswer(Answer):
    """The observations of a histogram since the job was created."""

    count: int
    sum: float
    buckets: list[BucketAnswer]


class UserMetricAnswer(Answer):
    """A series of a metric of a user's function."""

    operator: str = Field(description="The operator with the function.")
    name: str
    kind: Literal["COUNTER", "GAUGE", "HISTOGRAM"]
    help: str = Field(description="Its meaning, as declared.")
    labels: dict[str, str]
    value: float | None = Field(description="A counter since the job was created, or a gauge; null for a histogram.")
    histogram: HistogramAnswer | None


class UserMetricList(Answer):
    """The metrics of a job's functions.

    Gauges are known while a driver reports them.
    """

    user_metrics: list[UserMetricAnswer]


class UserSeriesAnswer(Answer):
    """The history of a series of a metric of a user's function."""

    operator: str
    name: str
    kind: Literal["COUNTER", "GAUGE", "HISTOGRAM"]
    labels: dict[str, str]
    values: list[float | None] = Field(
        description="Per time the growth of a counter per second, the value of a gauge, or the mean of the observations"
        " of a histogram; null if unknown."
    )
