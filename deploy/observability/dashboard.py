"""Grafana's dashboard of jobs and of the control plane."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from keyscale.metrics import CONTROL_PLANE, COUNTER, HISTOGRAM, JOB, JOB_COUNTERS, METRICS, OBSERVED, Unit, charts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.metrics import Metric

_UNITS = {
    Unit.MS: "s",
    Unit.SECONDS: "s",
    Unit.AT_MS: "s",
    Unit.BYTES: "bytes",
    Unit.RATIO: "percentunit",
    Unit.RECORDS_PER_SECOND: "suffix: /s",
}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_OF_JOB = 'job_name=~"$job"'


def dashboard() -> str:
    """Returns the dashboard as JSON."""
    panels = [*_row("Jobs"), *_job_panels(), *_row("Control plane"), *_own_panels()]
    placed, at = [], 0
    for number, panel in enumerate(panels, start=1):
        is_row = panel["type"] == "row"
        at += -at % _COLUMNS if is_row else 0
        y = at // _COLUMNS * _HEIGHT + sum(each["type"] == "row" for each in panels[: number - 1])
        width, height = (24, 1) if is_row else (_WIDTH, _HEIGHT)
        place = {"x": 0 if is_row else at % _COLUMNS * _WIDTH, "y": y, "w": width, "h": height}
        placed.append({"id": number, **panel, "gridPos": place})
        at += 0 if is_row else 1
    return (
        json.dumps(
            {
                "uid": "keyscale",
                "title": "Keyscale",
                "tags": ["keyscale"],
                "schemaVersion": 39,
                "editable": True,
                "refresh": "30s",
                "time": {"from": "now-1h", "to": "now"},
                "templating": {"list": [_source_variable(), _job_variable()]},
                "panels": placed,
            },
            indent=2,
        )
        + "\n"
    )


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _job_variable() -> dict[str, Any]:
    up = next(metric for metric in METRICS if metric.scope is OBSERVED and metric.name == "up")
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$source"},
        "query": f"label_values({up.prometheus}, job_name)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _row(title: str) -> Iterator[dict[str, Any]]:
    yield {"type": "row", "title": title, "collapsed": False, "panels": []}


def _job_panels() -> Iterator[dict[str, Any]]:
    age, *rest = sorted(
        (metric for metric in METRICS if metric.scope is OBSERVED and metric.is_scraped and not metric.is_held),
        key=lambda metric: metric.name != "last_checkpoint_age_ms",  # the first thing to look at
    )
    yield _panel(age, [age], scoped=True)
    for chart in charts():
        yield _panel(chart.lines[0], chart.lines, scoped=True, title=chart.title)
    shown = {metric.name for chart in charts() for metric in chart.lines}
    for metric in METRICS:
        if metric.scope is JOB and metric.fold is not None and metric.name not in shown and metric not in JOB_COUNTERS:
            yield _panel(metric, [metric], scoped=True)
    for metric in rest:
        yield _panel(metric, [metric], scoped=True)


def _own_panels() -> Iterator[dict[str, Any]]:
    for metric in METRICS:
        if metric.scope is CONTROL_PLANE:
            yield _panel(metric, [metric], scoped=False)


def _panel(first: Metric, lines: Any, *, scoped: bool, title: str | None = None) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title or _words(first),
        "description": first.help,
        "datasource": {"type": "prometheus", "uid": "$source"},
        "fieldConfig": {"defaults": {"unit": _UNITS.get(first.unit, "short"), "min": 0}, "overrides": []},
        "targets": [_target(metric, number, scoped=scoped) for number, metric in enumerate(lines)],
    }


def _target(metric: Metric, number: int, *, scoped: bool) -> dict[str, Any]:
    labels = ["job_name", *metric.labels] if scoped else list(metric.labels)
    legend = " ".join([*(f"{{{{{label}}}}}" for label in labels), metric.label.lower()]).strip()
    return {"refId": chr(ord("A") + number), "expr": _expression(metric, scoped=scoped), "legendFormat": legend}


def _expression(metric: Metric, *, scoped: bool) -> str:
    if metric.kind is HISTOGRAM:
        return f"histogram_quantile(0.95, sum by (le, route) (rate({metric.prometheus}_bucket[5m])))"
    if not scoped:
        by = f" by ({', '.join(metric.labels)})" if metric.labels else " by (instance)"
        return f"sum{by} (rate({metric.prometheus}[5m]))" if metric.kind is COUNTER else metric.prometheus
    name = metric.job_prometheus if metric.of_job else metric.prometheus
    by = ", ".join(["job_name", *metric.labels])
    if metric.unit is Unit.AT_MS:
        return f"time() - max by ({by}) ({name}{{{_OF_JOB}}})"
    if metric.name == "output_rate":
        source = next(each for each in JOB_COUNTERS if each.name == metric.source)
        return f"max by ({by}) (rate({source.job_prometheus}{{{_OF_JOB}}}[5m]))"
    return f"max by ({by}) ({name}{{{_OF_JOB}}})"


def _words(metric: Metric) -> str:
    stem = metric.name.removesuffix("_ms").removesuffix("_size")
    return stem.replace("_", " ").capitalize()
