"""Series of a job's metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field

from keyscale.metrics import SHOWN_SERIES
from keyscale.vocabulary import AnnotationKind

from ...shapes import Answer
from .user_metric import UserSeriesAnswer

if TYPE_CHECKING:

    class SeriesName(StrEnum):
        """The series of a job, by the declarations in `keyscale.metrics`."""

else:
    SeriesName = StrEnum("SeriesName", {metric.name.upper(): metric.name for metric in SHOWN_SERIES})
    SeriesName.__doc__ = "The series of a job."


class AnnotationAnswer(Answer):
    """An event at one time."""

    at_ms: int
    kind: AnnotationKind
    text: str
    id: str | None = Field(description="Id of the rescale or upgrade, or number of the checkpoint; else null.")


class SeriesAnswer(Answer):
    """Series of a job's metrics, all at the same times."""

    from_ms: int
    to_ms: int
    step_ms: int = Field(description="The time between two points.")
    at_ms: list[int] = Field(description="The times of the points, ascending.")
    series: dict[SeriesName, list[float | None]] = Field(
        description=(
            "Per series one value per time; null if unknown. Of several values in a step the largest lag, duration and"
            " size of a checkpoint counts, the latest watermark, state size and counter, and the mean of other values."
            " Names are as in a job's `metrics`."
        )
    )
    user: list[UserSeriesAnswer] = Field(
        description="The metrics of the job's functions, 50 series at most; empty if the request names series."
    )
    annotations: list[AnnotationAnswer] = Field(
        description="Restarts, changes and failures in this time, the newest 500 at most.",
    )
