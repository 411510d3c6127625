"""Metrics as an OTLP document, from Prometheus's text format. Pure.

The documents have OTLP's form in JSON, which collectors read like the binary form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from .otlp_values import attributes, nanoseconds, resource

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_CUMULATIVE = 2


def metrics_document(text: str, at_ms: int, instance: str) -> dict[str, Any]:
    """Returns the document of all samples of a text.

    Args:
        text: Prometheus's text format.
        at_ms: The time of the samples.
        instance: The replica that pushes them.
    """
    time = nanoseconds(at_ms)
    metrics = [_metric(family, time) for family in text_string_to_metric_families(text)]
    scope = {"scope": {"name": "keyscale"}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": resource(instance), "scopeMetrics": [scope]}]}


def _metric(family: Metric, time: str) -> dict[str, Any]:
    known = {"name": family.name, "description": family.documentation}
    if family.type == "histogram":
        points = _histogram_points(family, time)
        return {**known, "histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": points}}
    points = [
        {"attributes": attributes(sample.labels), "timeUnixNano": time, "asDouble": sample.value}
        for sample in family.samples
    ]
    if family.type == "counter":
        total = {"isMonotonic": True, "aggregationTemporality": _CUMULATIVE, "dataPoints": points}
        return {**known, "name": f"{family.name}_total", "sum": total}
    return {**known, "gauge": {"dataPoints": points}}


def _histogram_points(family: Metric, time: str) -> list[dict[str, Any]]:
    """Returns a point per set of labels.

    A bucket of the text includes the buckets before it.
    """
    points: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        point = points.setdefault(
            tuple(sorted(labels.items())),
            {"attributes": attributes(labels), "timeUnixNano": time, "explicitBounds": [], "bucketCounts": []},
        )
        if sample.name.endswith("_bucket"):
            before = sum(map(int, point["bucketCounts"]))
            point["bucketCounts"].append(str(int(sample.value) - before))
            if sample.labels["le"] != "+Inf":
                point["explicitBounds"].append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            point["sum"] = sample.value
        elif sample.name.endswith("_count"):
            point["count"] = str(int(sample.value))
    return list(points.values())
