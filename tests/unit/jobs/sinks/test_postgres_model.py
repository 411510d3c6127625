"""The sink of PostgreSQL keeps on the model of the server what `test_postgres_publication` shows on a real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable

from keyscale import PostgresSink
from keyscale.jobs.sinks import postgres_connection, postgres_copy, postgres_moves
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from tests.support.short_form import short_form
from tests.support.sinks.driver import Host, SinkDriver, every_kill
from tests.support.sinks.file_system import ModelSession, TableFrame
from tests.support.sinks.postgres_server import MARKERS, Server, Session, Table

if TYPE_CHECKING:
    from collections.abc import Callable

LAST = 1
OPTIONS: dict[str, dict[str, Any]] = {"keys": {"keys": ("id",)}, "a batch column": {"batch_column": "batch"}}


@dataclass
class Surroundings:
    """A world in which waiting passes time, and may let others act."""

    host: Host = field(default_factory=Host)
    seconds: float = 0.0
    meanwhile: Callable[[], None] = lambda: None

    def act(self) -> None:
        self.host.act()

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.meanwhile()

    def waited(self, session: Session, holder: Session, seconds: float) -> None: ...

    def committed(self) -> None: ...

    def ended(self, session: Session) -> None: ...


@pytest.fixture
def make_server(monkeypatch: pytest.MonkeyPatch) -> Callable[[Host], Server]:
    def make(host: Host) -> Server:
        server = Server(Surroundings(host), {"orders": Table(("id", "attempt", "batch"))})
        for module in (postgres_connection, postgres_moves):
            monkeypatch.setattr(module, "connected", server.connected)
        return server

    tasks = count()
    context = SimpleNamespace(get=lambda: SimpleNamespace(taskAttemptId=lambda: next(tasks), partitionId=lambda: 0))
    monkeypatch.setattr(postgres_copy, "TaskContext", context)
    monkeypatch.setattr(OpenMoves, "_of_jobs", {})
    monkeypatch.setattr(OpenMoves, "_left", {})
    return make


def driver_of(server: Server, options: dict[str, Any]) -> SinkDriver:
    def make() -> PostgresSink:
        OpenMoves._of_jobs.clear()
        OpenMoves._left.clear()
        for session in list(server.sessions):
            session.close()
        return PostgresSink("url", "orders", **options)

    return SinkDriver(make, frame)


def frame(batch_id: int, attempt: int) -> TableFrame:
    rows = [[{"id": 10 * batch_id + part, "attempt": attempt}] for part in range(2)]
    return TableFrame(ModelSession(Host()), tuple(map(pa.Table.from_pylist, rows)))


def written(server: Server) -> list[tuple[int, int]]:
    return sorted((row["id"], row["attempt"]) for row in server.tables["orders"].rows)


@pytest.mark.parametrize("kind", short_form(OPTIONS, ["a batch column"]))
def test_a_driver_that_is_killed_before_any_effect_neither_loses_nor_doubles_a_row(
    make_server: Callable[[Host], Server], kind: str
) -> None:
    def play(host: Host) -> Server:
        server = make_server(host)
        driver_of(server, OPTIONS[kind]).run(LAST)
        return server

    for number, server in every_kill(play):
        ids = [each for each, _ in written(server)]
        assert ids == [0, 1, 10, 11], f"killed before effect {number}"
        staged = [name for name in server.tables.keys() - {"orders", MARKERS} if server.tables[name].rows]
        assert staged == [], f"killed before effect {number}"
    assert number > 20


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_job_that_goes_back_replaces_its_later_rows(
    make_server: Callable[[Host], Server], options: dict[str, Any]
) -> None:
    server = make_server(Host())
    driver = driver_of(server, options)
    driver.run(1)
    driver.go_back(0)
    driver.run(1)
    assert written(server) == [(0, 1), (1, 1), (10, 2), (11, 2)]


def test_a_session_waits_for_the_row_that_another_one_has_changed(make_server: Callable[[Host], Server]) -> None:
    server = make_server(Host())
    first, second = server.connected("url"), server.connected("url")
    first.lock("row", alone=True)
    assert isinstance(server.host, Surroundings)
    server.host.meanwhile = first.close
    second.lock("row", alone=True)
    assert server.host.seconds > 0


def test_a_session_gives_up_at_its_lock_timeout_and_in_a_deadlock(make_server: Callable[[Host], Server]) -> None:
    server = make_server(Host())
    first, second = server.connected("url"), server.connected("url")
    first.lock("a", alone=True)
    second.lock("b", alone=True)
    second.execute("SET lock_timeout = '10s'")
    with pytest.raises(LockNotAvailable):
        second.lock("a", alone=True)
    first.waits_for = second
    with pytest.raises(DeadlockDetected):
        second.lock("a")


def test_what_an_ended_session_has_changed_is_undone(make_server: Callable[[Host], Server]) -> None:
    server = make_server(Host())
    old, new = server.connected("url", application_name="keyscale x 1"), server.connected("url")
    old.insert("orders", [{"id": 1, "attempt": 1, "batch": 0}])
    new.end_older_sessions("keyscale x ", 2)
    with pytest.raises(psycopg.OperationalError):
        old.commit()
    assert written(server) == []
