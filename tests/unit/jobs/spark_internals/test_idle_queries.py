"""A query is idle after Spark's event that it found no input, until its next event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from keyscale.jobs.spark_internals import idle_queries
from keyscale.jobs.spark_internals.idle_queries import IdleQueries
from tests.support.spark.played_jvm import answering

if TYPE_CHECKING:
    import pytest


class Manager:
    """The JVM's manager of queries."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.is_gone = False

    def addListener(self, listener: Any) -> None:  # noqa: N802 - Spark's name
        self.listeners.append(listener)

    def removeListener(self, listener: Any) -> None:  # noqa: N802
        if self.is_gone:
            raise ConnectionError
        self.listeners.remove(listener)


def event(run_id: str) -> Any:
    of_run = answering(runId=answering(toString=run_id))
    return answering(runId=of_run.runId(), progress=of_run)


def query(run_id: str, *, has_data: bool = False) -> Any:
    return SimpleNamespace(runId=run_id, status={"isDataAvailable": has_data})


def test_a_query_waits_from_its_idle_event_to_its_next_progress_or_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    started: list[Any] = []
    monkeypatch.setattr(idle_queries, "ensure_callback_server_started", started.append)
    streaming = SimpleNamespace(PythonStreamingQueryListenerWrapper=lambda events: events)
    sql = SimpleNamespace(streaming=streaming)
    org = SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=sql)))
    gateway = SimpleNamespace(jvm=SimpleNamespace(org=org))
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway), streams=SimpleNamespace(_jsqm=manager))
    idle = IdleQueries(cast("Any", spark))
    assert started == [gateway], "before the JVM calls back"
    (events,) = manager.listeners
    events.onQueryStarted(event("a"))
    assert not idle.has(query("a"))
    events.onQueryIdle(event("a"))
    assert (idle.has(query("a")), idle.has(query("a", has_data=True)), idle.has(query("b"))) == (True, False, False)
    events.onQueryIdle(event("b"))
    events.onQueryProgress(event("a"))
    assert (idle.has(query("a")), idle.has(query("b"))) == (False, True)
    events.onQueryTerminated(event("b"))
    events.onQueryTerminated(event("never idle"))
    assert not idle.has(query("b"))
    idle.close()
    assert manager.listeners == []
    manager.is_gone = True
    idle.close()
