"""Messages with a field for each metric of a scope.

The fields follow from the declarations in `keyscale.metrics`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, create_model

from keyscale.metrics import MetricKind, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyscale.metrics import Metric

Measured = Annotated[int, Field(ge=-(2**64), le=2**64)]
"""A measured number, stored as JSON; a watermark may be at either end of its range, and a lag beyond it."""
_MEASURE_MAX = 1e15


def _measured(number: float) -> float:
    return min(max(number, -_MEASURE_MAX), _MEASURE_MAX) if math.isfinite(number) else 0.0


Measure = Annotated[float, AfterValidator(_measured)]
"""A measured number with a fraction. A driver that divides by zero sends 0."""
Model = TypeVar("Model", bound=BaseModel)


def with_metrics(metrics: Iterable[Metric], since: str = "") -> Callable[[type[Model]], type[Model]]:
    """Returns a decorator that adds fields of metrics to a message.

    Args:
        metrics: The metrics.
        since: The moment from which counters of jobs count.
    """
    fields: dict[str, Any] = {metric.field: _field(metric, since) for metric in metrics}

    def extend(model: type[Model]) -> type[Model]:
        return create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
        )

    return extend


def _field(metric: Metric, since: str) -> tuple[Any, Any]:
    counts = since and metric.kind is MetricKind.COUNTER and metric.scope is Scope.JOB
    text = f"{metric.help.removesuffix('.')}, since {since}." if counts else metric.help
    kind: Any = Measured if metric.is_whole else Measure
    if metric.is_optional:
        return kind | None, Field(default=None, description=text)
    return kind, Field(default=0 if metric.is_whole else 0.0, description=text)
