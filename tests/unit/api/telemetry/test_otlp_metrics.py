"""Samples of Prometheus's text become points of OTLP."""

from __future__ import annotations

from typing import Any

from keyscale.api.telemetry.otlp_metrics import metrics_document

TEXT = """\
# HELP keyscale_requests_total Requests.
# TYPE keyscale_requests_total counter
keyscale_requests_total{method="GET"} 3.0
# HELP keyscale_streams Open streams.
# TYPE keyscale_streams gauge
keyscale_streams 2
# HELP keyscale_request_duration_seconds Time.
# TYPE keyscale_request_duration_seconds histogram
keyscale_request_duration_seconds_bucket{le="0.1",route="/"} 4
keyscale_request_duration_seconds_bucket{le="0.5",route="/"} 4
keyscale_request_duration_seconds_bucket{le="+Inf",route="/"} 6
keyscale_request_duration_seconds_sum{route="/"} 9.5
keyscale_request_duration_seconds_count{route="/"} 6
"""


def metrics(text: str) -> list[dict[str, Any]]:
    document = metrics_document(text, 1_700_000_000_123, "http://here")
    [of_replica] = document["resourceMetrics"]
    assert {"key": "service.instance.id", "value": {"stringValue": "http://here"}} in of_replica["resource"][
        "attributes"
    ]
    found: list[dict[str, Any]] = of_replica["scopeMetrics"][0]["metrics"]
    return found


def test_a_counter_is_a_cumulative_sum_under_its_name_in_prometheus() -> None:
    counter, gauge, _ = metrics(TEXT)
    assert (counter["name"], counter["description"]) == ("keyscale_requests_total", "Requests.")
    assert (counter["sum"]["isMonotonic"], counter["sum"]["aggregationTemporality"]) == (True, 2)
    [point] = counter["sum"]["dataPoints"]
    assert point == {
        "attributes": [{"key": "method", "value": {"stringValue": "GET"}}],
        "timeUnixNano": "1700000000123000000",
        "asDouble": 3.0,
    }
    assert gauge["gauge"]["dataPoints"][0]["asDouble"] == 2


def test_the_buckets_of_a_histogram_count_their_own_observations() -> None:
    histogram = metrics(TEXT)[2]["histogram"]
    [point] = histogram["dataPoints"]
    assert (point["explicitBounds"], point["bucketCounts"]) == ([0.1, 0.5], ["4", "0", "2"])
    assert (point["sum"], point["count"]) == (9.5, "6")
    assert point["attributes"] == [{"key": "route", "value": {"stringValue": "/"}}]
