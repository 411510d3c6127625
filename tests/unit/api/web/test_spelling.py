"""Closed sets of values are spelt in capitals in the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.settings import Settings
from keyscale.api.web.app import create_app, make_context
from keyscale.api.web.openapi import describe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHERS = {
    "the names of events in a stream": {"change", "operation", "away", "gone", "over"},
    "the parts of a job that a stream tells of": {"job", "metrics", "checkpoints", "operations", "events"},
    "Flink's configuration": {"exactly_once", "exponential-delay", "failure-rate", "fixed-delay", "none"},
    "hash functions": {"spark", "java"},
    "file formats": {"ndjson", "csv"},
    "the types of Prometheus's metrics": {"counter", "gauge", "histogram"},
    "the parameter that folds points of a series": {"sum", "largest", "smallest", "latest", "mean", "rate"},
    "JSON Schema's types": {"integer", "number", "string", "array"},
}


def closed_sets(schema: object) -> Iterator[list[str]]:
    """Yields the values of each closed set below a schema."""
    if isinstance(schema, dict):
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        yield [each for each in values if isinstance(each, str)]
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from closed_sets(part)


def test_closed_sets_are_in_capitals_where_no_other_standard_spells_them(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path, store_url=tmp_path.as_uri(), database_url="postgresql+psycopg://127.0.0.1:1/none"
    )
    context = make_context(settings)
    document: dict[str, Any] = describe(create_app(context, reconcile=False))
    context.engine.dispose()
    series = set(document["components"]["schemas"]["SeriesName"]["enum"])  # metrics, named as in Prometheus
    found = {value for values in closed_sets(document) for value in values if value != value.upper()}
    assert found == {*series, *(value for values in OTHERS.values() for value in values)}
