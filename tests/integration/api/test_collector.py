"""A collector gets the metrics of a replica, and the traces of the operations that end."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.telemetry.collector import Collector
from keyscale.clock import now_ms
from keyscale.db.models import Operation
from keyscale.vocabulary import OperationKind, OperationStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, str | None, Any]]]]:
    """Serves a collector on this host; yields its address, and the path, token and body of each request."""
    received: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, self.headers["X-Token"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def end_an_operation(context: Context, job: dict[str, Any], id: str, at_ms: int) -> None:  # noqa: A002 - usual name
    with context.sessions.begin() as session:
        session.add(
            Operation(
                id=id,
                job_id=job["id"],
                kind=OperationKind.SAVEPOINT,
                status=OperationStatus.COMPLETED,
                requested_at_ms=now_ms() - 1000,
                ended_at_ms=at_ms,
            )
        )


class Clock:
    """In place of the collector's clock."""

    def __init__(self) -> None:
        self.ms = now_ms()

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("keyscale.api.telemetry.collector.now_ms", clock)
    return clock


def test_a_collector_gets_metrics_and_the_traces_of_the_leader(
    context: Context, client: httpx.Client, job: dict[str, Any], clock: Clock
) -> None:
    client.get("/v1/jobs")
    with receiver() as (address, received):
        collector = Collector(context, endpoint=address, headers={"X-Token": "t"}, every_ms=60_000)
        end_an_operation(context, job, "while another replica leads", clock.ms)
        clock.ms += 10_000
        collector.poll()
        [(path, token, document)] = received
        assert (path, token) == ("/v1/metrics", "t")
        metrics = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        wanted = next(metric for metric in metrics if metric["name"] == "keyscale_job_wanted")
        assert {"key": "job_id", "value": {"stringValue": job["id"]}} in wanted["gauge"]["dataPoints"][0]["attributes"]
        assert any(metric["name"] == "keyscale_requests_total" for metric in metrics)
        context.pulse.role = "leader"
        ended_at_ms = clock.ms + 1
        clock.ms += 5000
        collector.poll()
        end_an_operation(context, job, "o1", ended_at_ms)  # noted late, as its transaction took four seconds
        collector.poll()
        assert received[1:] == []
        clock.ms += 10_000
        collector.poll()
        collector.poll()
        [(path, _, document)] = received[1:]
        assert path == "/v1/traces"
        spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
        assert [span["name"] for span in spans] == ["request SAVEPOINT", "SAVEPOINT flights"]


def test_all_operations_of_a_busy_moment_are_traced_in_requests_of_bounded_size(
    context: Context, job: dict[str, Any], clock: Clock
) -> None:
    with receiver() as (address, received):
        collector = Collector(context, endpoint=address, headers={}, every_ms=10**15)
        context.pulse.role = "leader"
        for number in range(101):
            end_an_operation(context, job, f"o{number}", clock.ms)
        clock.ms += 10_000
        collector.poll()
        traces = [
            document["resourceSpans"][0]["scopeSpans"][0]["spans"]
            for path, _, document in received
            if path == "/v1/traces"
        ]
    assert [len({span["traceId"] for span in spans}) for spans in traces] == [100, 1]


def test_a_collector_that_is_away_is_logged_once(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    with receiver() as (address, _):
        pass
    collector = Collector(context, endpoint=address, headers={}, every_ms=0)
    collector.poll()
    collector.poll()
    assert [record.message.split(":")[0] for record in caplog.records if record.name.endswith("collector")] == [
        "the collector does not take /v1/metrics"
    ]
