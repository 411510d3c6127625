"""The metrics that a function declares and counts in its subtask."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeVar

import numpy as np

from keyscale.metrics import COUNTER, GAUGE, HISTOGRAM, Fold, MetricKind
from keyscale.user_series import OTHER, RESERVED_LABELS, USER_SERIES_MAX, UserSeries

from ..errors import MetricInvalidError
from ..secret import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NAME_CHARACTERS_MAX: Final = 100
LABEL_CHARACTERS_MAX: Final = 100
"""Longer values of labels are cut."""
LABELS_MAX: Final = 5
BUCKETS_MAX: Final = 30
HELP_CHARACTERS_MAX: Final = 300
_NUMBER_MAX = 2**53
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
_OF_PROMETHEUS = re.compile(r"_(total|count|sum|bucket|created|info)$")

GaugeFold = Literal["sum", "largest", "smallest"]


class FunctionMetrics:
    """The metrics of a function, which `RuntimeContext.metrics` gives.

    Declare metrics in `open`. They count with the batch: the values of a batch that fails or runs again count once.
    """

    def __init__(self, operator_uid: str = "") -> None:
        self.help: dict[str, str] = {}
        self._operator = operator_uid
        self._declared: dict[str, _Metric] = {}
        self._undo: list[tuple[_Metric, tuple[int | float, ...], bool]] | None = None
        self._room = USER_SERIES_MAX

    def counter(self, name: str, help: str = "", labels: Sequence[str] = ()) -> Counter:  # noqa: A002 - usual name
        """Declares a counter.

        Args:
            name: Its name, without `_total`; Prometheus gets `keyscale_user_<name>_total`.
            help: Its meaning.
            labels: The names of its labels.

        Raises:
            MetricInvalidError: The declaration breaks Prometheus's rules, or differs from an earlier declaration.
        """
        return self._declare(Counter(self, name, labels), help)

    def gauge(
        self,
        name: str,
        help: str = "",  # noqa: A002 - usual name
        labels: Sequence[str] = (),
        fold: GaugeFold = "largest",
    ) -> Gauge:
        """Declares a gauge, which keeps its last value until its driver ends.

        Args:
            name: Its name.
            help: Its meaning.
            labels: The names of its labels.
            fold: How the values of subtasks become the job's value.

        Raises:
            MetricInvalidError: As for `counter`.
        """
        if fold not in {"sum", "largest", "smallest"}:
            raise MetricInvalidError(f"the gauge {name!r} has the fold {fold!r}; it is sum, largest or smallest")
        return self._declare(Gauge(self, name, labels, fold=Fold(fold)), help)

    def histogram(
        self,
        name: str,
        help: str = "",  # noqa: A002 - usual name
        labels: Sequence[str] = (),
        buckets: Sequence[float] = DEFAULT_BUCKETS,
    ) -> Histogram:
        """Declares a histogram.

        Args:
            name: Its name.
            help: Its meaning.
            labels: The names of its labels.
            buckets: The ascending upper bounds of its buckets; a last bucket has no bound.

        Raises:
            MetricInvalidError: As for `counter`.
        """
        bounds = tuple(float(bound) for bound in buckets)
        if not 1 <= len(bounds) <= BUCKETS_MAX or not all(map(math.isfinite, bounds)):
            raise MetricInvalidError(f"the histogram {name!r} has buckets other than 1 to {BUCKETS_MAX} finite numbers")
        if list(bounds) != sorted(set(bounds)):
            raise MetricInvalidError(f"the buckets of the histogram {name!r} do not ascend")
        return self._declare(Histogram(self, name, labels, bounds=bounds), help)

    def series(self) -> tuple[UserSeries, ...]:
        """Returns the series that the batch has changed."""
        return tuple(series for metric in self._declared.values() for series in metric.series(self._operator))

    def mark(self) -> None:
        """Begins a record; `undo` takes back its values."""
        self._undo = []

    def undo(self) -> None:
        """Takes back what was counted since `mark`."""
        for series, values, has_changed in reversed(self._undo or ()):
            series.reset(values, has_changed)

    def takes_series(self) -> bool:
        """Returns whether there is room for another series with labels."""
        self._room -= 1
        return self._room >= 0

    def will_change(self, series: _Metric, values: Sequence[int | float], has_changed: bool) -> None:
        """Notes the values of a series before they change."""
        if self._undo is not None:
            self._undo.append((series, tuple(values), has_changed))

    def _declare(self, metric: _Declared, described: str) -> _Declared:
        known = self._declared.setdefault(metric.name, metric)
        if known.declaration != metric.declaration:
            raise MetricInvalidError(f"the metric {metric.name!r} is declared twice, in different ways")
        self.help[metric.name] = _storable(" ".join(described.split()))[:HELP_CHARACTERS_MAX]
        assert isinstance(known, type(metric))  # noqa: S101 - the declarations are the same
        return known


class _Metric:
    """A declared metric, or one series of it."""

    kind: ClassVar[MetricKind]

    def __init__(
        self,
        metrics: FunctionMetrics,
        name: str,
        labels: Sequence[str],
        *,
        bounds: tuple[float, ...] = (),
        fold: Fold | None = None,
    ) -> None:
        _check(name, labels)
        self.name = name
        self._metrics = metrics
        self._bounds = bounds
        self._fold = fold
        self._names = tuple(labels)
        self._children: dict[tuple[str, ...], Self] = {}
        self._given: tuple[str, ...] = ()
        self._values: list[int | float] = [0] * (2 + len(bounds) if bounds else 1)
        self._has_changed = False

    @property
    def declaration(self) -> tuple[object, ...]:
        return self.kind, self._names, self._bounds, self._fold

    def labels(self, **labels: object) -> Self:
        """Returns the series with the given values of all labels.

        Raises:
            MetricInvalidError: The metric has other labels.
        """
        if self._given or tuple(labels) != self._names:
            self._check_labels(labels)
        if not self._names:
            return self
        given = tuple(str(labels[name])[:LABEL_CHARACTERS_MAX] for name in self._names)
        child = self._children.get(given)
        if child is None:
            child = self._child(given)
        return child

    def series(self, operator: str) -> Iterable[UserSeries]:
        """Yields the series that have changed in the batch."""
        if self._has_changed:
            labels = dict(zip(self._names, self._given, strict=True))
            yield UserSeries(operator, self.name, self.kind, labels, tuple(self._values), self._bounds, self._fold)
        for child in self._children.values():
            yield from child.series(operator)

    def reset(self, values: Sequence[int | float], has_changed: bool) -> None:
        """Takes back changes of the series."""
        self._values[:] = values
        self._has_changed = has_changed

    def _child(self, given: tuple[str, ...]) -> Self:
        other = (OTHER,) * len(given)
        if given != other and not self._metrics.takes_series():
            return self._children.get(other) or self._child(other)
        child = type(self)(self._metrics, self.name, self._names, bounds=self._bounds, fold=self._fold)
        child._given = tuple(map(_shown, given))
        return self._children.setdefault(given, child)

    def _check_labels(self, labels: Iterable[str]) -> None:
        if self._given or set(labels) != set(self._names):
            given, wanted = ", ".join(labels) or "none", ", ".join(self._names) or "none"
            raise MetricInvalidError(f"the metric {self.name!r} was given the labels {given}; it has: {wanted}")

    def _changed(self) -> list[int | float]:
        """Returns the values, which change now."""
        if self._names and not self._given:
            call = f".labels({', '.join(f'{name}=...' for name in self._names)})"
            raise MetricInvalidError(f"the metric {self.name!r} has labels: call {call} first")
        self._metrics.will_change(self, self._values, self._has_changed)
        self._has_changed = True
        return self._values


_Declared = TypeVar("_Declared", bound=_Metric)


class Counter(_Metric):
    """A number that only grows."""

    kind = COUNTER

    def inc(self, amount: float = 1) -> None:
        """Adds to the counter.

        Raises:
            MetricInvalidError: The amount is negative, or not a finite number.
        """
        number = _number(amount, self.name)
        if number < 0:
            raise MetricInvalidError(f"the counter {self.name!r} cannot fall: it was given {number}")
        self._changed()[0] += number


class Gauge(_Metric):
    """A number that rises and falls."""

    kind = GAUGE

    def set(self, value: float) -> None:
        """Sets the gauge of this subtask.

        Raises:
            MetricInvalidError: The value is not a finite number.
        """
        self._changed()[0] = _number(value, self.name)


class Histogram(_Metric):
    """The distribution of numbers over buckets."""

    kind = HISTOGRAM

    def observe(self, value: float) -> None:
        """Adds an observation.

        Raises:
            MetricInvalidError: The value is not a finite number.
        """
        number = _number(value, self.name)
        values = self._changed()
        values[0] += number
        values[1 + bisect_left(self._bounds, number)] += 1

    def observe_many(self, values: Any) -> None:
        """Adds the observations of an array.

        A column of Arrow without nulls is an array, too.

        Raises:
            MetricInvalidError: A value is not a finite number.
        """
        array = np.asarray(values, np.float64)
        if not np.isfinite(array).all():
            raise MetricInvalidError(f"the metric {self.name!r} was given a value that is not a finite number")
        counts = np.bincount(np.searchsorted(self._bounds, array), minlength=len(self._bounds) + 1)
        changed = self._changed()
        changed[0] += _number(array.sum(), self.name)
        for bucket, count in enumerate(counts.tolist()):
            changed[1 + bucket] += count


@lru_cache(maxsize=2048)  # a function is opened for each batch
def _shown(text: str) -> str:
    return without_secrets(_storable(text))


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "�")


def _number(value: Any, name: str) -> int | float:
    if type(value) is int and -_NUMBER_MAX <= value <= _NUMBER_MAX:
        return value
    try:
        number = int(value) if hasattr(value, "__index__") else float(value)
    except (TypeError, ValueError, OverflowError):
        raise MetricInvalidError(f"the metric {name!r} was given a {type(value).__name__}, not a number") from None
    if not -_NUMBER_MAX <= number <= _NUMBER_MAX:
        raise MetricInvalidError(f"the metric {name!r} was given {number}, which is not a finite number up to 2**53")
    return number


def _check(name: str, labels: Sequence[str]) -> None:
    if not _NAME.fullmatch(str(name)) or len(name) > NAME_CHARACTERS_MAX:
        raise MetricInvalidError(
            f"{name!r} cannot be the name of a metric: a name has 1 to {NAME_CHARACTERS_MAX} letters, digits and"
            " underscores, and begins with a letter"
        )
    if (suffix := _OF_PROMETHEUS.search(name)) is not None:
        raise MetricInvalidError(
            f"the name of the metric {name!r} ends with {suffix[0]}, which Prometheus adds; leave it out"
        )
    if isinstance(labels, str) or len(labels) > LABELS_MAX or len(set(labels)) < len(labels):
        raise MetricInvalidError(f"the labels of the metric {name!r} are not a list of up to {LABELS_MAX} names")
    for label in labels:
        if not _NAME.fullmatch(str(label)) or label in RESERVED_LABELS:
            raise MetricInvalidError(
                f"the metric {name!r} has the label {label!r}: a name of letters, digits and underscores, other than"
                f" {', '.join(sorted(RESERVED_LABELS))}"
            )
