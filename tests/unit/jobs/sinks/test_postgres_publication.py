"""The rows of a PostgreSQL sink are exactly those of the committed batches, whenever the driver is killed.

The database is real, and rows are copied without Spark. Each statement is a moment at which the driver may be gone.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from keyscale import PostgresSink
from keyscale.identifiers import Attempt, BatchId
from keyscale.jobs.errors import SinkForbiddenError, SinkOccupiedError, SinkPublishError, SinkRowsRefusedError
from keyscale.jobs.sinks import postgres_connection, postgres_copy, postgres_moves
from keyscale.jobs.sinks.postgres import MARKERS
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from keyscale.jobs.sinks.postgres_sessions import session_name
from keyscale.jobs.sinks.sink import SinkContext
from keyscale.state.documents.rewind import Rewind
from tests.support.servers.postgres import create_database
from tests.support.short_form import short_form
from tests.support.sinks.driver import JOB, UID, Host, KilledError, SinkDriver, every_kill
from tests.support.sinks.file_system import ModelSession, TableFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.real
LAST = 1
CHANGES = ("INSERT", "DELETE", "UPDATE", "TRUNCATE", "CREATE", "DROP")
OPTIONS: dict[str, dict[str, Any]] = {"keys": {"keys": ("id",)}, "a batch column": {"batch_column": "batch"}}


class Database:
    """The sink's database, and the host of the driver, whose connections end with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.host = Host()
        self.connections: list[psycopg.Connection[Any]] = []
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, attempt bigint, batch bigint)")

    def connected(self, url: str, **settings: str) -> psycopg.Connection[Any]:
        host = self.host

        class Connection(psycopg.Connection[Any]):
            def execute(self, query: Any, *more: Any, **named: Any) -> Any:
                text = query if isinstance(query, str) else query.as_string(self)
                if text.lstrip().startswith(CHANGES):
                    host.act()
                return super().execute(query, *more, **named)

            def commit(self) -> None:
                host.act()
                super().commit()

        made = Connection.connect(postgres_connection.make_conninfo(url, **settings))
        self.connections.append(made)
        return made

    def end_process(self) -> None:
        """Ends the connections of a driver that was killed, uncommitted."""
        OpenMoves._of_jobs.clear()
        OpenMoves._left.clear()
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement.encode()).fetchall()

    def written(self) -> list[tuple[int, int]]:
        """All that a reader sees: each row's id, and the attempt that wrote it."""
        return self.rows("SELECT id, attempt FROM orders ORDER BY id")

    def ids(self) -> list[int]:
        return [number for number, _ in self.written()]

    def staged(self) -> list[str]:
        names = self.rows("SELECT tablename FROM pg_tables WHERE starts_with(tablename, '_keyscale_')")
        return [name for (name,) in names if name != MARKERS and self.rows(f"SELECT 1 FROM {name}")]  # noqa: S608 - ours


@pytest.fixture
def make_database(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Database]]:
    made: list[Database] = []

    def make() -> Database:
        database = Database(create_database(postgres_server, f"sink_{uuid.uuid4().hex}"))
        made.append(database)
        for module in (postgres_connection, postgres_moves):
            monkeypatch.setattr(module, "connected", database.connected)
        return database

    tasks = count()
    task = SimpleNamespace(taskAttemptId=lambda: next(tasks), partitionId=lambda: 0)
    monkeypatch.setattr(postgres_copy, "TaskContext", SimpleNamespace(get=lambda: task))
    yield make
    for database in made:
        database.end_process()


def driver_of(database: Database, **options: Any) -> SinkDriver:
    def make() -> PostgresSink:
        database.end_process()
        return sink_of(database, **options)

    return SinkDriver(make, frame)


def sink_of(database: Database, **options: Any) -> PostgresSink:
    return PostgresSink(database.url, "orders", **options)


def frame(batch_id: int, attempt: int) -> TableFrame:
    rows = [[{"id": 10 * batch_id + part, "attempt": attempt}] for part in range(2)]
    return TableFrame(ModelSession(Host()), tuple(map(pa.Table.from_pylist, rows)))


def expected_ids(last: int) -> list[int]:
    return sorted(10 * batch_id + part for batch_id in range(last + 1) for part in range(2))


@pytest.mark.parametrize("kind", short_form(OPTIONS, ["a batch column"]))
def test_a_driver_that_is_killed_before_any_statement_neither_loses_nor_doubles_a_row(
    make_database: Callable[[], Database], kind: str
) -> None:
    def play(host: Host) -> Database:
        database = make_database()
        database.host = host
        driver_of(database, **OPTIONS[kind]).run(LAST)
        return database

    for number, database in every_kill(play):
        assert database.ids() == expected_ids(LAST), f"killed before statement {number}"
        assert database.staged() == [], f"killed before statement {number}"
        database.end_process()
    assert number > 10


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_job_that_goes_back_replaces_its_later_rows(
    make_database: Callable[[], Database], options: dict[str, Any]
) -> None:
    database = make_database()
    driver = driver_of(database, **options)
    driver.run(LAST)
    driver.go_back(0)
    driver.start()
    assert database.ids() == expected_ids(0 if "batch_column" in options else LAST)
    driver.run(LAST)
    assert database.written() == [(0, 1), (1, 1), (10, 3), (11, 3)]


def test_a_killed_driver_that_starts_from_nothing_replaces_all_rows(make_database: Callable[[], Database]) -> None:
    def play(host: Host) -> Database:
        database = make_database()
        driver = driver_of(database, batch_column="batch")
        driver.run(1)
        database.host = host
        driver.go_back(-1)
        driver.run(0)
        return database

    for number, database in every_kill(play):
        assert database.ids() == expected_ids(0), f"killed before statement {number}"
        assert 1 not in {attempt for _, attempt in database.written()}, f"killed before statement {number}"
        database.end_process()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_start_from_nothing_that_commits_no_batch_leaves_all_rows(
    make_database: Callable[[], Database], options: dict[str, Any]
) -> None:
    database = make_database()
    driver = driver_of(database, **options)
    driver.run(LAST)
    driver.go_back(-1)
    driver.start()
    assert database.ids() == expected_ids(LAST)
    driver.go_back(LAST)
    driver.run(LAST + 1)
    assert database.ids() == expected_ids(LAST + 1)


def test_a_sink_that_comes_back_after_the_job_went_back_without_it_loses_the_rows_of_its_earlier_life(
    make_database: Callable[[], Database],
) -> None:
    database = make_database()
    driver = driver_of(database, batch_column="batch")
    driver.run(LAST)
    driver.run_without_the_sink(-1, last=20)
    driver.run(21)
    assert database.ids() == [210, 211]
    driver.start()
    assert database.ids() == [210, 211]


class TwoSinks:
    """Sinks of orders and of their items, which refer to the orders, as one sink of a job.

    They are called as a runner calls them: what is taken back is taken back in the reverse order.
    """

    reads_repeatedly: ClassVar[bool] = False

    def __init__(self, database: Database) -> None:
        self.orders = sink_of(database, batch_column="batch")
        self.items = PostgresSink(database.url, "items", batch_column="batch")

    def prepare(self, frame: TableFrame, context: SinkContext) -> str:
        of_order = [[{"of_order": row["id"]} for row in table.to_pylist()] for table in frame.partitions]
        items = TableFrame(frame.session, tuple(map(pa.Table.from_pylist, of_order)))
        return "|".join([self.orders.prepare(frame, context), self.items.prepare(items, of_items(context))])

    def publish(self, token: str) -> None:
        for sink, part in zip((self.orders, self.items), token.split("|"), strict=True):
            sink.publish(part)

    def discard(self, token: str) -> None:
        raise NotImplementedError

    def take_over(self, context: SinkContext) -> None:
        self.items.take_over(of_items(context))
        self.orders.take_over(context)

    def recover(self, context: SinkContext) -> None:
        self.items.recover(of_items(context))
        self.orders.recover(context)


def of_items(context: SinkContext) -> SinkContext:
    return replace(context, uid="items")


@pytest.mark.parametrize("kept", [-1, 0])
@pytest.mark.parametrize("kill_before", [None, "publish"])
def test_sinks_with_rows_that_refer_to_each_other_go_back(
    make_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch, kept: int, kill_before: str | None
) -> None:
    database = make_database()
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (of_order bigint REFERENCES orders, batch bigint)")

    def make() -> TwoSinks:
        database.end_process()
        return TwoSinks(database)

    driver = SinkDriver(make, frame)
    driver.run(LAST)
    driver.go_back(kept)
    driver.rewinds = (Rewind(Attempt(2), BatchId(kept)),)
    if kill_before is not None:
        driver.tokens.clear()
        with monkeypatch.context() as patch:
            patch.setattr(TwoSinks, kill_before, killed)
            with pytest.raises(KilledError):
                driver.run_attempt(kept + 1)
    driver.run(kept + 1)
    assert database.ids() == expected_ids(kept + 1)
    assert [number for (number,) in database.rows("SELECT of_order FROM items ORDER BY 1")] == expected_ids(kept + 1)
    assert {attempt for _, attempt in database.written()} == ({1, 2} if kept == 0 else {2})


def killed(*_: Any) -> None:
    raise KilledError


def test_a_start_from_nothing_fails_if_other_rows_refer_to_rows_of_before(
    make_database: Callable[[], Database],
) -> None:
    database = make_database()
    driver = driver_of(database, batch_column="batch")
    driver.run(LAST)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (of_order bigint REFERENCES orders)")
        connection.execute("INSERT INTO items VALUES (10)")
    driver.go_back(-1)
    sink = driver.start()
    rows = TableFrame(ModelSession(Host()), (pa.Table.from_pylist([{"id": 7, "attempt": 2}]),))
    with pytest.raises(SinkRowsRefusedError, match=r"delete the rows of table orders .* ForeignKeyViolation"):
        sink.prepare(rows, driver.context(0))
    assert database.ids() == expected_ids(LAST)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("DELETE FROM items")
    sink.publish(sink.prepare(rows, driver.context(0)))
    assert database.ids() == [7]


def test_a_job_that_goes_back_is_refused_if_its_rows_would_be_doubled(make_database: Callable[[], Database]) -> None:
    database = make_database()
    driver = driver_of(database)
    driver.run(LAST)
    driver.go_back(0)
    with pytest.raises(SinkOccupiedError, match="gone back to batch 0"):
        driver.start()
    assert database.ids() == expected_ids(LAST)


def test_rows_are_visible_once_they_are_published_and_publishing_again_changes_nothing(
    make_database: Callable[[], Database],
) -> None:
    database = make_database()
    driver = driver_of(database, keys=("id",))
    sink = driver.start()
    token = sink.prepare(frame(0, 1), driver.context(0))
    assert database.ids() == []
    sink.publish(token)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("DELETE FROM orders WHERE id = 0")
    sink.publish(token)
    driver.committed, driver.tokens[0] = 0, token
    driver.start().publish(token)
    assert database.ids() == [1]


def test_an_older_attempt_is_refused_although_its_rows_are_staged(make_database: Callable[[], Database]) -> None:
    database = make_database()
    driver = driver_of(database, keys=("id",))
    old = driver.start()
    newer = SinkContext(JOB, UID, -1, 2, "newer")
    late = old.prepare(frame(0, 1), driver.context(0))
    OpenMoves._of_jobs.clear()
    sink_of(database, keys=("id",)).recover(newer)
    with pytest.raises((SinkOccupiedError, SinkPublishError)):
        old.publish(late)
    staged_late = sink_of(database, keys=("id",)).prepare(frame(0, 1), driver.context(0))
    OpenMoves.close(database.url, JOB)
    with pytest.raises(SinkOccupiedError, match="newer attempt than 1"):
        sink_of(database, keys=("id",)).publish(staged_late)
    assert database.ids() == []


def test_a_driver_waits_for_no_transaction_of_an_older_attempt_whose_driver_sleeps(
    make_database: Callable[[], Database],
) -> None:
    database = make_database()
    url = make_conninfo(database.url, options="-c lock_timeout=3s")
    driver = driver_of(database, keys=("id",))
    token = driver.start().prepare(frame(0, 1), driver.context(0))
    OpenMoves._of_jobs.clear()  # the new driver is another process; the rows that the old one has moved stay locked
    with psycopg.connect(database.url, application_name=session_name(JOB, 1)) as asleep:
        asleep.execute(f"SELECT FROM {MARKERS} FOR UPDATE")
        new = PostgresSink(url, "orders", keys=("id",))
        new.publish(token)
        new.recover(SinkContext(JOB, UID, 0, 2, "new"))
        with pytest.raises(psycopg.OperationalError):
            asleep.execute("SELECT 1")
    assert database.ids() == expected_ids(0)


def test_a_discarded_batch_leaves_nothing_and_cannot_be_published(make_database: Callable[[], Database]) -> None:
    database = make_database()
    driver = driver_of(database)
    sink = driver.start()
    token = sink.prepare(frame(0, 1), driver.context(0))
    sink.discard(token)
    sink.discard(token)
    assert database.staged() == []
    with pytest.raises(SinkPublishError):
        sink.publish(token)
    assert database.ids() == []


def test_the_table_of_another_job_is_refused(make_database: Callable[[], Database]) -> None:
    database = make_database()
    driver_of(database).run_attempt(0)
    other = SinkContext("other", UID, -1, 1, "u")
    with pytest.raises(SinkOccupiedError, match="of job job writes to table orders"):
        sink_of(database).recover(other)
    sink_of(database, shared=True).recover(other)


CHECK = SinkContext(JOB, UID, 0, 9, "check-check")
SCHEMA = pa.schema([("id", pa.int64()), ("attempt", pa.int64())])


def test_a_check_waits_for_no_batch_of_the_running_attempt_and_leaves_nothing(
    make_database: Callable[[], Database],
) -> None:
    database = make_database()
    driver = driver_of(database, batch_column="batch")
    sink = driver.start()
    token = sink.prepare(frame(0, 1), driver.context(0))  # its transaction is open
    tables = database.rows("SELECT tablename FROM pg_tables ORDER BY tablename")
    sink_of(database, batch_column="batch").check(SCHEMA, CHECK)
    assert database.rows("SELECT tablename FROM pg_tables ORDER BY tablename") == tables
    sink.publish(token)
    assert database.ids() == expected_ids(0)


def test_a_check_refuses_the_table_of_another_job_and_columns_that_are_not_there(
    make_database: Callable[[], Database],
) -> None:
    database = make_database()
    driver_of(database).start()
    with pytest.raises(SinkOccupiedError):
        sink_of(database).check(SCHEMA, SinkContext("another", UID, 0, 1, "check-check"))
    with pytest.raises(SinkRowsRefusedError, match="has no column price"):
        sink_of(database).check(SCHEMA.append(pa.field("price", pa.int64())), CHECK)


def test_each_right_that_is_missing_is_named_with_the_user_before_a_row_is_written(
    make_database: Callable[[], Database],
) -> None:
    database = make_database()
    with psycopg.connect(database.url, autocommit=True) as owner:
        user = owner.info.user
        owner.execute("CREATE SCHEMA sales; CREATE TABLE sales.orders (LIKE orders INCLUDING ALL)")
        owner.execute(f"REVOKE ALL ON sales.orders FROM {user}; REVOKE CREATE ON SCHEMA sales FROM {user}".encode())

        def check(**options: Any) -> None:
            PostgresSink(database.url, "sales.orders", **options).check(SCHEMA, CHECK)

        def missing(denied: str, **options: Any) -> None:
            with pytest.raises(SinkForbiddenError, match=f"refuses user {user}: permission denied for {denied}"):
                check(**options)

        missing("table orders")
        owner.execute(f"GRANT SELECT ON sales.orders TO {user}".encode())
        missing("schema sales")
        owner.execute(f"GRANT CREATE ON SCHEMA sales TO {user}".encode())
        missing("table orders")
        owner.execute(f"GRANT INSERT ON sales.orders TO {user}".encode())
        check()
        for right, options in (("UPDATE", OPTIONS["keys"]), ("DELETE", OPTIONS["a batch column"])):
            missing("table orders", **options)
            owner.execute(f"GRANT {right} ON sales.orders TO {user}".encode())
            check(**options)
        PostgresSink(database.url, "sales.orders").recover(CHECK)  # makes the table of markers
        owner.execute(f"REVOKE UPDATE ON sales.{MARKERS} FROM {user}".encode())
        missing(f"table {MARKERS}")
