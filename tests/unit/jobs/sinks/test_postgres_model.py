"""The sink of PostgreSQL keeps on the model of the server what `test_postgres_publication` shows on a real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pyarrow as pa
import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable

from keyscale import PostgresSink
from keyscale.identifiers import Attempt, BatchId
from keyscale.jobs.errors import SinkOccupiedError, SinkPublishError, SinkRowsRefusedError
from keyscale.jobs.operators.failures import CarriedFailure
from keyscale.jobs.sinks import postgres, postgres_connection, postgres_copy, postgres_moves
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from keyscale.jobs.sinks.sink import SinkContext
from keyscale.state.documents.rewind import Rewind
from tests.support.short_form import short_form
from tests.support.sinks.driver import JOB, UID, Host, SinkDriver, every_kill
from tests.support.sinks.file_system import ModelSession, TableFrame
from tests.support.sinks.postgres_server import MARKERS, Server, Session, Table

if TYPE_CHECKING:
    from collections.abc import Callable

LAST = 1
CHECK = SinkContext(JOB, UID, 0, 9, "checkcheck")
SCHEMA = pa.schema([("id", pa.int64()), ("attempt", pa.int64())])
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


def frame(batch_id: int, attempt: int) -> Any:
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


def test_a_job_that_starts_without_state_takes_its_rows_back_once(make_server: Callable[[Host], Server]) -> None:
    server = make_server(Host())
    driver = driver_of(server, OPTIONS["a batch column"])
    driver.run(1)
    driver.go_back(-1)
    driver.run(1)
    assert written(server) == [(0, 2), (1, 2), (10, 2), (11, 2)]


def test_a_driver_that_is_killed_after_a_start_without_state_publishes_what_it_has_committed(
    make_server: Callable[[Host], Server],
) -> None:
    def play(host: Host) -> Server:
        server = make_server(Host())
        driver = driver_of(server, OPTIONS["a batch column"])
        driver.run(1)
        server.host = Surroundings(host)
        driver.go_back(-1)
        driver.rewinds = (Rewind(Attempt(2), BatchId(-1)),)
        driver.run(0)
        return server

    for number, server in every_kill(play):
        assert [each for each, _ in written(server)] == [0, 1], f"killed before effect {number}"
        assert 1 not in {attempt for _, attempt in written(server)}, f"killed before effect {number}"
    assert number > 10


class Letters:
    """A dead letter sink that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def prepare(self, frame: Any, context: SinkContext) -> str:
        self.calls.append((context.uid, *frame))
        return "letters"

    def publish(self, token: str) -> None:
        self.calls.append(("publish", token))

    def discard(self, token: str) -> None:
        self.calls.append(("discard", token))

    def recover(self, context: SinkContext) -> None:
        self.calls.append(("recover", context.uid))

    def check(self, schema: pa.Schema, context: SinkContext) -> None:
        self.calls.append((context.uid, schema.names))


@pytest.mark.parametrize("options", [{}, *OPTIONS.values()], ids=["appends", *OPTIONS])
def test_rows_that_a_check_or_a_trigger_refuses_are_dead_letters_and_all_others_are_published(
    make_server: Callable[[Host], Server], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    server = make_server(Host())
    server.tables["orders"].checks = lambda row: row["id"] in {3, 5}
    server.tables["orders"].trigger = lambda row: row["id"] == 7
    spark = SimpleNamespace(createDataFrame=lambda rows, schema: (rows, schema))
    monkeypatch.setattr(postgres, "SparkSession", SimpleNamespace(active=lambda: spark))
    letters = Letters()
    driver = driver_of(server, options | {"dead_letters": letters})
    sink: Any = driver.start()
    rows = [[{"id": number, "attempt": 1} for number in part] for part in ((1, 3, 4, 5), (), (6, 7, 8))]
    tables = tuple(pa.Table.from_pylist(part, SCHEMA) for part in rows)
    token = sink.prepare(TableFrame(ModelSession(Host()), tables), driver.context(0))
    assert (sink.dead_letters_of(token), written(server)) == (3, [])
    sink.publish(token)
    assert written(server) == [(1, 1), (4, 1), (6, 1), (8, 1)]
    of_batch = {"batch_column": 0}.get(next(iter(options), ""))
    assert {row.get("batch") for row in server.tables["orders"].rows} == {of_batch}
    refused = [
        ('{"id": 3, "attempt": 1}', "CheckViolation (23514)"),
        ('{"id": 5, "attempt": 1}', "CheckViolation (23514)"),
        ('{"id": 7, "attempt": 1}', "RaiseException (P0001)"),
    ]
    uid = f"{UID}-dead-letters"
    assert letters.calls == [
        ("recover", uid),
        (uid, refused, "row string, error string"),
        ("publish", "letters"),
    ]
    sink.discard(token)
    assert letters.calls[3:] == [("discard", "letters")]
    plain: Any = driver_of(server, options).make()
    with pytest.raises(CarriedFailure, match=r"SINK_ROWS_REFUSED: PostgreSQL refuses: CheckViolation \(23514\) "):
        plain.prepare(TableFrame(ModelSession(Host()), tables[:1]), driver.context(1))
    with pytest.raises(SinkRowsRefusedError, match=r"refuses: RaiseException \(P0001\)$"):
        plain.prepare(TableFrame(ModelSession(Host()), tables[2:]), driver.context(1))
    assert len(written(server)) == 4
    assert [name for name in server.tables if server.tables[name].rows and name not in {"orders", MARKERS}] == []


def test_a_staging_table_is_used_again_once_its_batch_is_published_and_the_table_is_as_before(
    make_server: Callable[[Host], Server],
) -> None:
    server = make_server(Host())
    driver = driver_of(server, OPTIONS["keys"])
    sink = driver.start()

    def stages() -> set[str]:
        return server.tables.keys() - {"orders", MARKERS}

    used = []
    for batch_id, shape in enumerate(["1", "1", "2", "2"]):
        server.shape = shape
        token = sink.prepare(frame(batch_id, 1), driver.context(batch_id))
        used.append(frozenset(stages()))
        sink.publish(token)
    assert used[0] == used[1] != used[2] == used[3]
    assert all(len(names) == 1 for names in used)
    unpublished = sink.prepare(frame(4, 1), driver.context(4))
    again = sink.prepare(frame(5, 1), driver.context(5))
    assert len(stages()) == 2, "a batch that is not published keeps its table"
    sink.discard(unpublished)
    sink.discard(again)
    sink.discard(again)
    assert stages() == set()
    with pytest.raises(SinkPublishError, match="staged rows of batch 5 of sink out are gone"):
        sink.publish(again)
    assert [number for number, _ in written(server)] == [0, 1, 10, 11, 20, 21, 30, 31]


def test_an_attempt_removes_what_it_and_earlier_ones_have_staged_whatever_the_batch(
    make_server: Callable[[Host], Server],
) -> None:
    server = make_server(Host())
    driver_of(server, OPTIONS["keys"]).run_attempt(0)
    prefix = postgres._stage_prefix(JOB, UID)
    for name in (f"{prefix}1_4_own", f"{prefix}3_0_newer", "_keyscale_of_another_sink"):
        server.tables[name] = Table(("id",))
    for attempt, left in ((2, {f"{prefix}3_0_newer"}), (3, set())):
        PostgresSink("url", "orders", keys=("id",)).recover(SinkContext(JOB, UID, 3, attempt, "u"))
        assert server.tables.keys() == {"orders", MARKERS, "_keyscale_of_another_sink"} | left


STAGED = '"stage" WHERE "_keyscale_task" = ANY(%(tasks)s)'
LATEST = '"_keyscale_task" DESC, "_keyscale_row" DESC'


@pytest.mark.parametrize(
    ("options", "columns", "statement"),
    [
        ({}, ("id", "n"), '("id", "n") SELECT "id", "n" FROM STAGED'),
        ({"batch_column": "batch"}, ("id",), '("id", "batch") SELECT "id", 7 FROM STAGED'),
        (
            {"keys": ("id", "day")},
            ("day", "n", "id"),
            """("day", "n", "id") SELECT DISTINCT ON ("id", "day") "day", "n", "id" FROM STAGED
            ORDER BY "id", "day", LATEST ON CONFLICT ("id", "day") DO UPDATE SET "n" = EXCLUDED."n\"""",
        ),
        (
            {"keys": ("id",), "batch_column": "batch"},
            ("id", "n"),
            """("id", "n", "batch") SELECT DISTINCT ON ("id") "id", "n", 7 FROM STAGED
            ORDER BY "id", LATEST ON CONFLICT ("id")
            DO UPDATE SET "n" = EXCLUDED."n", "batch" = EXCLUDED."batch\"""",
        ),
        (
            {"keys": ("id",)},
            ("id",),
            """("id") SELECT DISTINCT ON ("id") "id" FROM STAGED
            ORDER BY "id", LATEST ON CONFLICT ("id") DO NOTHING""",
        ),
    ],
)
def test_the_last_row_of_each_key_is_moved_with_all_columns_and_its_batch(
    options: dict[str, Any], columns: tuple[str, ...], statement: str
) -> None:
    sink = PostgresSink("url", "orders", **options)
    token = postgres._Token(JOB, UID, 7, 1, "stage", columns, (4, 5))
    moved = " ".join(sink._move(token).as_string().replace(STAGED, "STAGED").replace(LATEST, "LATEST").split())
    assert moved == " ".join(f'INSERT INTO "orders" {statement}'.split())
    some = sink._move(token, some=True).as_string()
    assert (
        '("_keyscale_task", "_keyscale_row") IN (SELECT * FROM unnest(%(some_tasks)s::bigint[], %(some_rows)s' in some
    )
    of_none = sink._move(msgspec.structs.replace(token, tasks=())).as_string()
    assert ' FROM "stage" WHERE false' in of_none, "a batch without tasks moves no row"
    elsewhere = PostgresSink("url", "sales.orders", **options)._move(token).as_string()
    assert elsewhere.startswith('INSERT INTO "sales"."orders" ')
    assert 'FROM "sales"."stage" ' in elsewhere


def test_the_open_transaction_of_the_driver_that_staged_a_batch_is_ended_before_it_is_published(
    make_server: Callable[[Host], Server],
) -> None:
    server = make_server(Host())
    driver = driver_of(server, OPTIONS["keys"])
    token = driver.start().prepare(frame(0, 1), driver.context(0))
    OpenMoves._of_jobs.clear()  # the next driver is another process

    def waits() -> None:
        raise AssertionError("the sink waits for a driver that sleeps")

    assert isinstance(server.host, Surroundings)
    server.host.meanwhile = waits
    PostgresSink("url", "orders", keys=("id",)).publish(token)
    assert (written(server), server.sessions) == ([(0, 1), (1, 1)], [])


def test_rows_that_another_writer_has_locked_are_moved_when_they_are_published(
    make_server: Callable[[Host], Server],
) -> None:
    server = make_server(Host())
    driver = driver_of(server, OPTIONS["keys"])
    sink = driver.start()
    writer = server.connected("url")
    writer.lock(("orders", (1,)), alone=True)
    token = sink.prepare(frame(0, 1), driver.context(0))
    assert server.sessions == [writer], "no transaction of the sink holds a lock"
    writer.close()
    sink.publish(token)
    assert written(server) == [(0, 1), (1, 1)]


def test_a_table_belongs_to_one_sink_unless_it_is_shared(make_server: Callable[[Host], Server]) -> None:
    server = make_server(Host())
    server.tables["other"] = Table(("id", "attempt"))
    driver_of(server, {}).run_attempt(0)
    with pytest.raises(SinkOccupiedError, match="sink out of job job writes to table orders: give sink mine"):
        PostgresSink("url", "orders").recover(SinkContext("late", "mine", -1, 1, "u"))
    PostgresSink("url", "other").recover(SinkContext("late", "mine", -1, 1, "u"))
    PostgresSink("url", "orders", shared=True).recover(SinkContext("third", UID, -1, 1, "u"))
    PostgresSink("url", "orders").recover(SinkContext(JOB, UID, 0, 2, "u"))
    with pytest.raises(SinkOccupiedError, match="attempt 2 writes the output of sink out"):
        PostgresSink("url", "orders").recover(SinkContext(JOB, UID, 0, 1, "u"))
    for row in server.tables[MARKERS].rows:
        row["target"] = None  # as versions before wrote it
    fork = SinkContext("fork", UID, -1, 1, "u", forked_from=JOB)
    with pytest.raises(SinkOccupiedError, match="of job job writes"):
        PostgresSink("url", "orders").recover(fork)
    PostgresSink("url", "other").recover(SinkContext("fork", "another", -1, 1, "u", forked_from=JOB))


@pytest.mark.parametrize(("last", "message"), [(0, "gone back to batch 0"), (-1, "left its history")])
def test_rows_that_nothing_replaces_are_not_doubled(
    make_server: Callable[[Host], Server], last: int, message: str
) -> None:
    server = make_server(Host())
    driver = driver_of(server, {})
    driver.run(1)
    driver.go_back(last)
    with pytest.raises(SinkOccupiedError, match=message):
        driver.start()
    assert [number for number, _ in written(server)] == [0, 1, 10, 11]


def test_a_batch_is_published_in_the_table_that_it_was_staged_for(make_server: Callable[[Host], Server]) -> None:
    server = make_server(Host())
    server.tables["other"] = Table(("id", "attempt", "batch"))
    driver = driver_of(server, OPTIONS["a batch column"])
    token = driver.start().prepare(frame(0, 1), driver.context(0))
    OpenMoves.close("url", JOB)
    PostgresSink("url", "other").publish(token)
    assert [(row["id"], row["batch"]) for row in server.tables["orders"].rows] == [(0, 0), (1, 0)]
    assert server.tables["other"].rows == []
    assert server.tables.keys() == {"orders", "other", MARKERS}, "the staging table is not used again"


def test_a_newer_attempt_is_not_overtaken_by_an_older_one_with_staged_rows(
    make_server: Callable[[Host], Server],
) -> None:
    server = make_server(Host())
    driver = driver_of(server, OPTIONS["keys"])
    driver.start()
    PostgresSink("url", "orders", keys=("id",)).recover(SinkContext(JOB, UID, -1, 2, "newer"))
    old = PostgresSink("url", "orders", keys=("id",))
    late = old.prepare(frame(0, 1), driver.context(0))
    with pytest.raises(SinkOccupiedError, match="newer attempt than 1 writes the output of sink out"):
        old.publish(late)
    assert written(server) == []


def test_a_check_leaves_nothing_and_refuses_what_a_batch_would_be_refused_for(
    make_server: Callable[[Host], Server],
) -> None:
    server = make_server(Host())
    letters = Letters()
    sink = PostgresSink("url", "orders", batch_column="batch", dead_letters=letters)  # type: ignore[arg-type]
    sink.check(SCHEMA, CHECK)
    assert letters.calls == [(f"{UID}-dead-letters", ["row", "error"])]
    assert server.tables.keys() == {"orders"}
    driver = driver_of(server, OPTIONS["a batch column"])
    running = driver.start()
    token = running.prepare(frame(0, 1), driver.context(0))
    tables, markers = set(server.tables), list(server.tables[MARKERS].rows)
    PostgresSink("url", "orders", batch_column="batch").check(SCHEMA, CHECK)
    assert (set(server.tables), server.tables[MARKERS].rows) == (tables, markers)
    with pytest.raises(SinkOccupiedError, match="of job job writes to table orders"):
        PostgresSink("url", "orders").check(SCHEMA, SinkContext("another", UID, 0, 1, "checkcheck"))
    PostgresSink("url", "orders", shared=True).check(SCHEMA, SinkContext("another", UID, 0, 1, "checkcheck"))
    of_price: list[dict[str, Any]] = [{"keys": ("price",)}, {"batch_column": "price"}]
    for options in of_price:
        with pytest.raises(SinkRowsRefusedError, match=r"table orders has no column price$"):
            PostgresSink("url", "orders", **options).check(SCHEMA, CHECK)
    with pytest.raises(SinkRowsRefusedError, match="has no column day, price"):
        sink.check(pa.schema([("price", pa.int64()), ("id", pa.int64()), ("day", pa.date32())]), CHECK)
    running.publish(token)
    assert written(server) == [(0, 1), (1, 1)]


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
