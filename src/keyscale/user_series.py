"""The series of the metrics that users' functions declare.

Each combination of the values of a metric's labels is a series. The functions here are pure.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from keyscale.metrics import GAUGE, LARGEST, SMALLEST, Fold, MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

USER_SERIES_MAX = 200
"""Maximum number of series of a job; further values of labels become `OTHER`."""
OTHER = "other"
"""The value of each label in the series of all values that are too many."""
RESERVED_LABELS = frozenset({"job_id", "job_name", "operator", "job", "instance", "le", "quantile"})
"""The labels that the platform and Prometheus add: a sample with two labels of one name ends a whole scrape."""
_NUMBER_MAX = 2**53

Key: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]


class UserSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """A series of a user's metric.

    Attributes:
        operator: The operator whose function counts.
        name: The name of the metric.
        kind: How its values change.
        labels: The values of its labels.
        values: The value of a counter or gauge; of a histogram the sum of its observations, and their number in each
            bucket, the last without a bound.
        bounds: The upper bounds of a histogram's buckets, ascending.
        fold: How the values of a gauge's subtasks become one.
    """

    operator: str
    name: str
    kind: MetricKind
    labels: dict[str, str]
    values: tuple[int | float, ...]
    bounds: tuple[float, ...] = ()
    fold: Fold | None = None

    @property
    def key(self) -> Key:
        """What tells a series from other series of the job."""
        return self.operator, self.name, tuple(sorted(self.labels.items()))

    @property
    def metric(self) -> tuple[str, str]:
        """The metric that the series is a part of."""
        return self.operator, self.name

    @property
    def form(self) -> tuple[object, ...]:
        """What the metric's declaration says; with another declaration the metric begins again."""
        return self.kind, self.bounds, *sorted(self.labels)

    def folded(self) -> UserSeries:
        """Returns the values in the series of too many values of labels."""
        return msgspec.structs.replace(self, labels=dict.fromkeys(self.labels, OTHER))

    def plus(self, other: UserSeries) -> UserSeries:
        """Returns the sums of the values."""
        sums = (min(mine + its, _NUMBER_MAX) for mine, its in zip(self.values, other.values, strict=True))
        return msgspec.structs.replace(self, values=tuple(sums))

    @property
    def count(self) -> int | float:
        """The value of a counter, or the number of a histogram's observations."""
        return sum(self.values[1:]) if self.bounds else self.values[0]


def added(counted: Iterable[UserSeries], batch: Iterable[UserSeries]) -> tuple[UserSeries, ...]:
    """Adds the counters and histograms of a batch.

    The result is bounded: a new series that is too many is added to the series of its metric for other values. A
    metric with another declaration than before begins again.
    """
    counts = [each for each in batch if each.kind is not GAUGE]
    forms = {each.metric: each.form for each in counts}
    found = {each.key: each for each in counted if forms.get(each.metric, each.form) == each.form}
    for each in counts:
        place = _place(each, found) if each.form == forms[each.metric] else None
        if place is not None:
            known = found.get(place.key)
            found[place.key] = place if known is None else known.plus(place)
    return tuple(found[key] for key in sorted(found))


def at_least(counted: Iterable[UserSeries], other: Iterable[UserSeries]) -> tuple[UserSeries, ...]:
    """Returns the newer values of each series.

    Two places know the counters of a job. Counters only grow, so the larger value is the newer value.
    """
    found: dict[Key, UserSeries] = {}
    for each in chain(counted, other):
        known = found.get(each.key)
        if known is None or known.form != each.form or known.count < each.count:
            found[each.key] = each
    return tuple(found[key] for key in sorted(found))


def latest(gauges: Mapping[Key, UserSeries], batch: Iterable[UserSeries]) -> dict[Key, UserSeries]:
    """Returns the last values of a subtask's gauges after a batch.

    The result is bounded, as the counters of `added` are.
    """
    found = dict(gauges)
    for each in batch:
        place = _place(each, found) if each.kind is GAUGE else None
        if place is not None:
            found[place.key] = place
    return found


def gauges_of(subtasks: Mapping[int, Iterable[UserSeries]]) -> tuple[UserSeries, ...]:
    """Folds the gauges of subtasks to the gauges of their job."""
    values: dict[Key, list[int | float]] = {}
    series: dict[Key, UserSeries] = {}
    for each in chain.from_iterable(subtasks.values()):
        place = _place(each, series)
        if place is not None:
            series[place.key] = place
            values.setdefault(place.key, []).append(place.values[0])
    return tuple(
        msgspec.structs.replace(series[key], values=(_folded(series[key].fold, values[key]),)) for key in sorted(series)
    )


def _folded(fold: Fold | None, values: list[int | float]) -> int | float:
    return max(values) if fold is LARGEST else min(values) if fold is SMALLEST else sum(values)


def _place(series: UserSeries, found: Mapping[Key, UserSeries]) -> UserSeries | None:
    """Returns the series that values count in.

    None: the job has too many metrics.
    """
    if series.key in found:
        return series
    place = series.folded() if len(found) >= USER_SERIES_MAX else series
    return place if place.key in found or len(found) < 2 * USER_SERIES_MAX else None


def overflowing(counted: Iterable[UserSeries], batch: Iterable[UserSeries]) -> set[str]:
    """Returns the metrics of a batch with values that count as `OTHER`."""
    known = {each.key for each in counted}
    counts = (each for each in batch if each.kind is not GAUGE)
    return {each.name for each in counts if each.key not in known or OTHER in each.labels.values()}
