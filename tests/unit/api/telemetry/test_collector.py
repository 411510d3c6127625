"""A collector gets metrics in its interval, and each ended operation once, from the leader."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from keyscale.api.telemetry import collector as service
from keyscale.api.telemetry.collector import Collector
from keyscale.db.job_scope import EVERYTHING
from keyscale.db.models import Job, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.api.telemetry.otlp_traces import EndedOperation

LATE_MS = 10_000


class World:
    """A control plane with ended operations, a clock, and a collector that answers as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000_000
        self.status = 200
        self.ended: list[Operation] = []
        self.sent: list[Any] = []
        self.asked: list[Any] = []
        self.pulse = SimpleNamespace(role="leader")
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(control_url="https://here"), pulse=self.pulse, reads=lambda: nullcontext(None)
        )
        monkeypatch.setattr(service, "now_ms", lambda: self.now_ms)
        monkeypatch.setattr(service, "shared_now_ms", lambda: self.now_ms + 1)
        monkeypatch.setattr(
            service.scrape, "text_of", lambda of, scope: "the text" if (of, scope) == (context, EVERYTHING) else ""
        )
        monkeypatch.setattr(service, "metrics_document", lambda *given: {"metrics": list(given)})
        monkeypatch.setattr(service, "trace_document", self._traces)
        monkeypatch.setattr(service.operations, "ended_between", self._ended_between)
        monkeypatch.setattr(
            service.jobs, "find", lambda _, job_id: None if job_id == "gone" else Job(id=job_id, name="n")
        )
        monkeypatch.setattr(service.attempts, "first_since", lambda _, *key: f"attempt of {key}")
        monkeypatch.setattr(service.events, "request_of", lambda _, *key: f"request of {key}")
        self.collector = Collector(
            context, endpoint="http://collector/base", headers={"X-Token": "t"}, every_ms=60_000, certificates=False
        )
        self.collector._client._transport = httpx.MockTransport(self._answer)

    def _ended_between(self, _: Any, after_ms: int, until_ms: int) -> list[Operation]:
        self.asked.append((after_ms, until_ms))
        return self.ended

    def _traces(self, ended: list[EndedOperation], instance: str) -> dict[str, Any]:
        assert instance == "https://here"
        return {"traces": [(each.operation.id, each.job_name, each.attempt, each.request_id) for each in ended]}

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["X-Token"] == "t"
        self.sent.append((str(request.url), *json.loads(request.content).items()))
        return httpx.Response(self.status)

    def poll(self, after_ms: int) -> list[Any]:
        self.now_ms += after_ms
        self.sent.clear()
        self.asked.clear()
        self.collector.poll()
        return self.sent


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    world.collector._client.close()


def ended(name: str, job_id: str = "job", ended_at_ms: int | None = 9) -> Operation:
    return Operation(id=name, job_id=job_id, requested_at_ms=5, ended_at_ms=ended_at_ms)


def test_metrics_are_pushed_in_their_interval_and_operations_of_each_moment_once(world: World) -> None:
    begun_ms = world.now_ms
    metrics = ("http://collector/base/v1/metrics", ("metrics", ["the text", begun_ms + 1, "https://here"]))
    assert world.poll(0) == [metrics]
    assert world.asked == [(begun_ms - LATE_MS, begun_ms - LATE_MS)], "an operation may be noted late"
    world.ended = [ended("o"), ended("p", "gone"), ended("q", ended_at_ms=None)]
    until_ms = begun_ms + 59_999 - LATE_MS
    of = [
        [name, "n", f"attempt of ('job', 5, {end_ms})", f"request of ('job', '{name}')"]
        for name, end_ms in (("o", 9), ("q", until_ms))
    ]
    assert world.poll(59_999) == [("http://collector/base/v1/traces", ("traces", of))]
    assert world.asked == [(begun_ms - LATE_MS, until_ms)]
    world.ended = []
    [(url, _)] = world.poll(1)
    assert (url, world.asked) == (metrics[0], [(until_ms, until_ms + 1)])


def test_only_the_leader_pushes_traces_and_none_of_before_it_led(world: World) -> None:
    world.pulse.role = "follower"
    world.ended = [ended("o")]
    world.poll(0)
    assert (world.poll(5000), world.asked) == ([], [])
    world.pulse.role = "leader"
    assert len(world.poll(5000)) == 1
    assert world.asked == [(world.now_ms - 5000 - LATE_MS, world.now_ms - LATE_MS)]


def test_many_operations_are_pushed_in_requests_of_bounded_size(world: World) -> None:
    world.poll(0)
    world.ended = [ended(f"o{number}") for number in range(2 * service._TRACES_MAX + 1)]
    sent = [[name for name, *_ in traces] for _, (_, traces) in world.poll(1)]
    assert [len(names) for names in sent] == [service._TRACES_MAX, service._TRACES_MAX, 1]
    assert list(chain.from_iterable(sent)) == [each.id for each in world.ended]


def test_a_collector_that_takes_nothing_is_logged_once_until_it_takes_something(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.status = 503
    for _ in range(2):
        world.poll(60_000)
    assert len(caplog.records) == 1
    world.status = 200
    world.poll(60_000)
    world.status = 400
    world.poll(60_000)
    assert len(caplog.records) == 2
