"""The metrics of a job, each with one meaning everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from keyscale.metrics import COUNTER, JOB_METRICS

from ...shapes import Answer

if TYPE_CHECKING:
    from keyscale.metrics import Metric


def _field(metric: Metric) -> tuple[Any, Any]:
    """Returns the field of a metric.

    A counter is always known; a gauge may be unknown.
    """
    kind: Any = int if metric.is_whole else float
    if metric.kind is COUNTER:
        return kind, Field(description=metric.growth_help)
    return kind | None, Field(description=metric.help)


class _JobMetrics(Answer):
    """A job's current metrics.

    An unknown metric, such as a rate of a job that does not run, is null. Counters and waiting records stay.
    """

    lag_records_at_ms: int | None = Field(description="Time at which lag_records was counted; null without a number.")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


if TYPE_CHECKING:

    class JobMetricsAnswer(_JobMetrics):
        """A job's current metrics, by the declarations in `keyscale.metrics`."""

else:
    JobMetricsAnswer = create_model(
        "JobMetricsAnswer",
        __base__=_JobMetrics,
        __module__=__name__,
        __doc__=_JobMetrics.__doc__,
        **{metric.name: _field(metric) for metric in JOB_METRICS},
    )
