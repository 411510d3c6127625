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


def test_each_set_of_labels_is_a_point_of_its_own() -> None:
    name = "keyscale_request_duration_seconds"
    text = f"""\
# HELP {name} Time.
# TYPE {name} histogram
{name}_bucket{{le="0.1",route="/"}} 4
{name}_bucket{{le="+Inf",route="/"}} 6
{name}_sum{{route="/"}} 9.5
{name}_count{{route="/"}} 6
{name}_bucket{{le="0.1",route="/ui"}} 1
{name}_bucket{{le="+Inf",route="/ui"}} 1
{name}_sum{{route="/ui"}} 0.5
{name}_count{{route="/ui"}} 1
"""
    [metric] = metrics(text)
    assert (metric["name"], metric["description"], metric["histogram"]["aggregationTemporality"]) == (name, "Time.", 2)
    points = metric["histogram"]["dataPoints"]
    assert [
        (point["attributes"][0]["value"]["stringValue"], point["bucketCounts"], point["sum"], point["count"])
        for point in points
    ] == [("/", ["4", "2"], 9.5, "6"), ("/ui", ["1", "0"], 0.5, "1")]
    assert {point["timeUnixNano"] for point in points} == {"1700000000123000000"}
    gauges = metrics('# TYPE keyscale_up gauge\nkeyscale_up{job="a"} 1\nkeyscale_up{job="b"} 0\n')
    assert [point["asDouble"] for point in gauges[0]["gauge"]["dataPoints"]] == [1, 0]
