"""The metrics that a replica counts itself, for Prometheus.

Each follows from its declaration in `keyscale.metrics`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from sqlalchemy import event

from keyscale.metrics import CONTROL_PLANE, COUNTER, GAUGE, of_scope

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from starlette.types import Scope

_BUCKETS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_PUBLIC = "/v1"
_BEGAN_S = "keyscale_statement_began_s"
NO_ROUTE = "none"
"""The route of requests that no route answers: clients can invent any number of paths and methods."""
disable_created_metrics()  # type: ignore[no-untyped-call]  # a series of the time of its creation beside each counter


class OwnMetrics:
    """The counters and histograms of one replica. Any thread may count."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in of_scope(CONTROL_PLANE):
            if metric.kind is GAUGE:
                continue  # read when Prometheus asks
            if metric.kind is COUNTER:
                name = metric.prometheus.removesuffix("_total")
                made = Counter(name, metric.help, metric.labels, registry=self._registry)
                self._counters[metric.name] = made
            else:
                self._histograms[metric.name] = Histogram(
                    metric.prometheus, metric.help, metric.labels, registry=self._registry, buckets=_BUCKETS_S
                )

    def count(self, name: str, *labels: str) -> None:
        """Adds one to a counter."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc()

    def note_request(self, scope: Scope, status: int, duration_s: float, *, is_stream: bool) -> None:
        """Counts a request and its time.

        The time of a stream does not count: it lasts as long as its reader stays.
        """
        route = _route_of(scope)
        method = scope["method"] if route != NO_ROUTE and scope["method"] in _METHODS else NO_ROUTE
        self.count("requests", method, route, str(status))
        if not is_stream:
            self._histograms["request_duration"].labels(route).observe(duration_s)

    def watch(self, engine: Engine) -> None:
        """Counts an engine's failures, and the time of its statements."""
        event.listen(engine, "handle_error", lambda _: self.count("database_errors"))
        event.listen(engine, "before_cursor_execute", _begin_statement)
        event.listen(engine, "after_cursor_execute", self._note_statement)

    def note_store_check(self, duration_s: float, has_failed: bool) -> None:
        """Counts a check of the object store and its time."""
        self._histograms["store_duration"].observe(duration_s)
        if has_failed:
            self.count("store_errors")

    def _note_statement(self, connection: Connection, *_: Any) -> None:
        self._histograms["database_duration"].observe(time.monotonic() - connection.info[_BEGAN_S])

    def text(self) -> str:
        """Returns the metrics in Prometheus's text format."""
        return generate_latest(self._registry).decode()


def _begin_statement(connection: Connection, *_: Any) -> None:
    connection.info[_BEGAN_S] = time.monotonic()


def _route_of(scope: Scope) -> str:
    """Returns the path of a request's route, with its parameters as written."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        return NO_ROUTE
    # FastAPI gives the path without the prefix under which the application has included the route.
    is_public = scope["path"].startswith(f"{_PUBLIC}/") and not path.startswith(f"{_PUBLIC}/")
    return f"{_PUBLIC}{path}" if is_public else str(path)
