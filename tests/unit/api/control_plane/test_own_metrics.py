"""A replica counts its requests, and the failures and the time of its database and its object store."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from keyscale.api.control_plane.own_metrics import OwnMetrics


def values_of(metrics: OwnMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_statements_are_timed_and_failures_of_the_database_are_counted() -> None:
    metrics, engine = OwnMetrics(), create_engine("sqlite://")
    metrics.watch(engine)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1 FROM missing"))
    found = values_of(metrics)
    assert found["keyscale_database_duration_seconds_count"] == 1
    assert found["keyscale_database_errors_total"] == 1


def test_checks_of_the_object_store_are_timed_and_failures_are_counted() -> None:
    metrics = OwnMetrics()
    metrics.note_store_check(0.5, False)
    metrics.note_store_check(2.5, True)
    found = values_of(metrics)
    assert (found["keyscale_store_duration_seconds_count"], found["keyscale_store_duration_seconds_sum"]) == (2, 3)
    assert found["keyscale_store_errors_total"] == 1


@pytest.mark.parametrize(
    ("method", "path", "route", "labels"),
    [
        ("GET", "/v1/jobs/flights", "/jobs/{job_id}", {"method": "GET", "route": "/v1/jobs/{job_id}"}),
        ("POST", "/v1/jobs", "/v1/jobs", {"method": "POST", "route": "/v1/jobs"}),
        ("POST", "/driver/heartbeat", "/driver/heartbeat", {"method": "POST", "route": "/driver/heartbeat"}),
        ("GET", "/v1x/jobs", "/v1x/jobs", {"method": "GET", "route": "/v1x/jobs"}),
        ("GET", "/invented", None, {"method": "none", "route": "none"}),
        ("INVENTED", "/v1/jobs", "/jobs", {"method": "none", "route": "/v1/jobs"}),
    ],
)
def test_a_request_is_counted_by_its_route_and_its_time_unless_it_is_a_stream(
    method: str, path: str, route: str | None, labels: dict[str, str]
) -> None:
    metrics = OwnMetrics()
    scope = {"method": method, "path": path, "route": None if route is None else SimpleNamespace(path=route)}
    metrics.note_request(scope, 201, 0.5, is_stream=False)
    metrics.note_request(scope, 201, 2.0, is_stream=False)
    metrics.note_request(scope, 201, 3600.0, is_stream=True)
    families = text_string_to_metric_families(metrics.text())
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for each in families
        for sample in each.samples
    }
    assert found["keyscale_requests_total", tuple(sorted({**labels, "status": "201"}.items()))] == 3
    of_route = (("route", labels["route"]),)
    name = "keyscale_request_duration_seconds"
    assert (found[f"{name}_count", of_route], found[f"{name}_sum", of_route]) == (2, 2.5)
