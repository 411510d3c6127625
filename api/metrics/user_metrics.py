"""Shows the metrics that users' functions declare.

Their values are shown now, in series, and to Prometheus.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, cast

from keyscale.db.repositories import attempts
from keyscale.metrics import COUNTER, HISTOGRAM, MetricKind

from ..database_clock import shared_now_ms
from ..jobs.jobs import require_job_id
from ..lifecycle.current_report import reports_now
from ..lifecycle.job_totals import user_counters
from .schemas.user_metric import BucketAnswer, HistogramAnswer, UserMetricAnswer, UserMetricList

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keyscale.jobs.protocol.messages import DriverMetrics

    from ..control_plane.context import Context

SERIES_KEPT_MAX = 50
"""Of more series of a job, the history of the first ones is kept."""


def list_of(context: Context, reference: str) -> UserMetricList:
    """Lists the metrics of a job's functions.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        attempt = attempts.newest_counted(session, require_job_id(session, reference))
    if attempt is None:
        return UserMetricList(user_metrics=[])
    reported = attempt.metrics or {}
    is_current = reports_now(attempt, now_ms=shared_now_ms())
    found = [*user_counters(attempt.totals_before, reported), *(reported.get("user_gauges", ()) if is_current else ())]
    described = reported.get("user_help") or {}
    return UserMetricList(user_metrics=[_answer(each, described.get(each["name"], "")) for each in found])


def _answer(series: Mapping[str, Any], described: str) -> UserMetricAnswer:
    is_histogram = series["kind"] == HISTOGRAM
    return UserMetricAnswer(
        operator=series["operator"],
        name=series["name"],
        kind=cast("Literal['COUNTER', 'GAUGE', 'HISTOGRAM']", MetricKind(series["kind"]).name),
        help=described,
        labels=series["labels"],
        value=None if is_histogram else series["values"][0],
        histogram=_histogram(series) if is_histogram else None,
    )


def _histogram(series: Mapping[str, Any]) -> HistogramAnswer:
    total, *counts = series["values"]
    buckets = [
        BucketAnswer(up_to=bound, count=count)
        for bound, count in zip([*series.get("bounds", ()), None], counts, strict=False)
    ]
    return HistogramAnswer(count=sum(counts), sum=total, buckets=buckets)


# --- history ---------------------------------------------------------------------------------------------------------


def sampled(metrics: DriverMetrics, *, is_current: bool) -> dict[str, list[float]]:
    """Returns the values of a report for series, by key.

    A histogram has its sum and its count.
    """
    counters = [] if metrics.counters is None else metrics.counters.user
    found = [*counters, *(metrics.user_gauges if is_current else ())]
    return {
        key_of(each.model_dump()): [each.values[0], sum(each.values[1:])] if each.bounds else [each.values[0]]
        for each in found[:SERIES_KEPT_MAX]
    }


def key_of(series: Mapping[str, Any]) -> str:
    """Returns the key of a series in stored points."""
    return json.dumps([series["operator"], series["name"], series["kind"], series["labels"]], sort_keys=True)


# --- Prometheus ------------------------------------------------------------------------------------------------------


class UserFamilies:
    """The samples of users' metrics, by name.

    Jobs may give one name to metrics of several kinds: such a name has no type.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._kinds: dict[str, set[str]] = {}
        self._help: dict[str, str] = {}

    def add(self, series: Iterable[Mapping[str, Any]], described: Mapping[str, str], inner: str) -> None:
        """Adds the series of a job, with the job's labels."""
        for each in series:
            name = f"keyscale_user_{each['name']}{'_total' if each['kind'] == COUNTER else ''}"
            self._kinds.setdefault(name, set()).add(each["kind"])
            self._help.setdefault(name, described.get(each["name"], ""))
            own = {"operator": each["operator"], **each["labels"]}
            labels = ",".join([inner, *(f'{label}="{escaped(value)}"' for label, value in own.items())])
            self._lines.setdefault(name, []).extend(_samples(name, labels, each))

    def text(self) -> str:
        """Returns all samples in Prometheus's text format."""
        return "".join(part for name, lines in self._lines.items() for part in (*self._head(name), *lines))

    def _head(self, name: str) -> Sequence[str]:
        if len(self._kinds[name]) > 1:
            return ()
        described = self._help[name].replace("\\", "\\\\").replace("\n", "\\n") or "A metric of a job's functions."
        return f"# HELP {name} {described}\n", f"# TYPE {name} {next(iter(self._kinds[name]))}\n"


def _samples(name: str, labels: str, series: Mapping[str, Any]) -> list[str]:
    first, *counts = series["values"]
    if series["kind"] != HISTOGRAM:
        return [f"{name}{{{labels}}} {first}\n"]
    lines, seen = [], 0
    for bound, count in zip([*map(float, series.get("bounds", ())), "+Inf"], counts, strict=False):
        seen += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {seen}\n')
    return [*lines, f"{name}_sum{{{labels}}} {first}\n", f"{name}_count{{{labels}}} {seen}\n"]


def escaped(text: str) -> str:
    """Returns a label's value as Prometheus reads it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
