"""The rows of a batch appear in PostgreSQL together, once, and only if it was committed."""

from __future__ import annotations

import datetime as dt
import json
import threading
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from keyscale import FileSink, ForeachBatchSink, PostgresSink, Secret, SinkContext
from keyscale.jobs.errors import (
    InvalidTopologyError,
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkUnavailableError,
)
from keyscale.jobs.operators.failures import typed_failure
from keyscale.jobs.sinks import dead_letters, postgres_moves
from keyscale.jobs.sinks.postgres import MARKERS
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from tests.support.short_form import short_form
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real


def context(batch_id: int = 0, *, attempt: int = 1, unique: str = "aaaaaaaa", uid: str = "orders") -> SinkContext:
    return SinkContext(job_id="job", uid=uid, batch_id=batch_id, attempt=attempt, unique=unique)


def fork(batch_id: int, *, attempt: int = 1, unique: str = "ffffffff") -> SinkContext:
    return replace(context(batch_id, attempt=attempt, unique=unique), job_id="fork", forked_from="job")


class Database:
    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement.encode()).fetchall()

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows("SELECT id FROM orders ORDER BY id")]

    def stages(self) -> list[str]:
        """The names of the staging tables."""
        rows = self.rows("SELECT tablename FROM pg_tables WHERE starts_with(tablename, '_keyscale_')")
        return sorted(row[0] for row in rows if row[0] != MARKERS)

    def staged(self) -> list[str]:
        """The names of those that hold rows."""
        return [name for name in self.stages() if self.rows(f"SELECT 1 FROM {name} LIMIT 1")]  # noqa: S608 - ours


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    made = Database(postgres_url)
    made.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint CHECK (amount >= 0), batch bigint)")
    yield made
    OpenMoves.close(postgres_url, "job")


def ids(spark: SparkSession, *wanted: int) -> DataFrame:
    return spark.createDataFrame([(number,) for number in wanted], "id bigint").repartition(3)


def test_a_batch_is_invisible_before_publish_and_complete_after_it(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
    token = sink.prepare(ids(spark, 1, 2, 3), context())
    assert database.ids() == []
    sink.publish(token)
    assert database.ids() == [1, 2, 3]
    assert database.staged() == []


CHANGES = [
    "ALTER id TYPE numeric",
    "ADD name text DEFAULT 'n' NOT NULL",
    "ALTER name SET DEFAULT 'm'",
    "ADD CHECK (id < 100)",
]


@pytest.mark.parametrize("changes", short_form([len(CHANGES), 1], [1]))
def test_one_batch_after_another_uses_one_staging_table_until_the_target_changes(
    spark: SparkSession, database: Database, changes: int
) -> None:
    sink = PostgresSink(database.url, "orders")
    sink.recover(context(-1))

    def publish(batch_id: int) -> list[str]:
        sink.publish(sink.prepare(ids(spark, batch_id), context(batch_id, unique=f"{batch_id:08}")))
        return database.stages()

    (first,) = publish(0)
    assert publish(1) == publish(2) == [first]
    for batch_id, change in enumerate(CHANGES[:changes], 3):
        (before,) = database.stages()
        database.run(f"ALTER TABLE orders {change}")
        assert len({before, *publish(batch_id)}) == 2
    following = 3 + changes
    discarded = sink.prepare(ids(spark, 90), context(following, unique="discards"))
    sink.discard(discarded)
    assert database.stages() == []
    publish(following)
    sink.recover(context(following))
    assert database.stages() == []
    publish(following + 1)
    assert database.ids() == list(range(following + 2))


@pytest.mark.exhaustive  # the test above shows when a table is used again
def test_a_table_whose_batch_is_not_published_is_not_used_for_another(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
    sink.publish(sink.prepare(ids(spark, 0), context(0)))
    first = sink.prepare(ids(spark, 1), context(1, unique="first---"))
    second = sink.prepare(ids(spark, 2), context(2, unique="second--"))
    assert len(database.stages()) == 2
    OpenMoves.close(database.url, "job")
    sink.publish(first)
    sink.publish(second)
    assert database.ids() == [0, 1, 2]


def test_a_batch_that_is_published_again_even_by_two_at_once_is_there_once(
    spark: SparkSession, database: Database
) -> None:
    database.run("ALTER TABLE orders DROP CONSTRAINT orders_pkey")  # it would refuse a second try
    sink = PostgresSink(database.url, "orders")
    sink.recover(context(-1))
    token = sink.prepare(ids(spark, *range(100)), context())

    def publish() -> None:
        try:
            PostgresSink(database.url, "orders").publish(token)
        except SinkUnavailableError:  # another publisher has ended the session; the driver tries again
            publish()

    publishers = [threading.Thread(target=publish) for _ in "1234"]
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.join()
    PostgresSink(database.url, "orders").publish(token)  # as the next attempt does at its start
    assert database.ids() == list(range(100))


def test_rows_of_an_unreported_task_do_not_count(spark: SparkSession, database: Database) -> None:
    """Such as a task on an executor that seemed to be lost and was not."""
    sink = PostgresSink(database.url, "orders")
    token = sink.prepare(ids(spark, 1, 2), context())
    (stage,) = database.staged()
    database.run(f"INSERT INTO {stage} (id, _keyscale_task, _keyscale_row) VALUES (1, -1, 0), (9, -1, 1)")  # noqa: S608 - ours
    sink.publish(token)
    assert database.ids() == [1, 2]


def test_of_two_tries_of_a_batch_only_the_committed_one_is_there(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
    failed = sink.prepare(ids(spark, 1, 2), context(unique="aaaaaaaa"))
    committed = sink.prepare(ids(spark, 3), context(unique="bbbbbbbb"))
    sink.publish(committed)
    sink.discard(failed)
    sink.discard(failed)
    assert database.ids() == [3]
    assert database.staged() == []


def test_a_new_attempt_deletes_leftovers_of_older_ones_and_fences_them(spark: SparkSession, database: Database) -> None:
    old = PostgresSink(database.url, "orders")
    old.recover(context(-1))
    left_behind = old.prepare(ids(spark, 7), context(0, attempt=1))
    other = PostgresSink(database.url, "orders").prepare(ids(spark, 8), context(0, uid="orders-2"))
    PostgresSink(database.url, "orders").recover(context(-1, attempt=2))
    assert len(database.staged()) == 1  # the other sink's
    with pytest.raises(SinkOccupiedError):
        old.publish(left_behind)
    with pytest.raises(SinkOccupiedError):
        old.recover(context(-1, attempt=1))
    PostgresSink(database.url, "orders").publish(other)
    assert database.ids() == [8]


@pytest.mark.exhaustive  # as a new attempt does
def test_a_run_that_follows_in_the_same_attempt_deletes_what_the_one_before_has_left(
    spark: SparkSession, database: Database
) -> None:
    PostgresSink(database.url, "orders").prepare(ids(spark, 7), context(0, attempt=2))
    PostgresSink(database.url, "orders").prepare(ids(spark, 8), context(0, attempt=3, unique="cccccccc"))
    PostgresSink(database.url, "orders").recover(context(-1, attempt=2))
    (newer,) = database.stages()
    assert "_3_0_" in newer


@pytest.mark.exhaustive  # the model of the database shows it in the fast tier
def test_a_staged_batch_that_is_gone_is_an_error(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
    sink.recover(context(-1))
    token = sink.prepare(ids(spark, 1), context())
    sink.discard(token)
    with pytest.raises(SinkPublishError, match="gone"):
        sink.publish(token)


def test_rows_are_inserted_or_updated_by_their_keys_and_the_last_one_of_a_batch_counts(
    spark: SparkSession, database: Database
) -> None:
    sink = PostgresSink(database.url, "orders", keys=["id"])
    for batch_id, rows in enumerate(([(1, 10), (2, 20)], [(1, 11), (3, 30), (1, 12)])):
        frame = spark.createDataFrame(rows, "id bigint, amount bigint").repartition(2, "id")
        sink.publish(sink.prepare(frame, context(batch_id)))
    assert database.rows("SELECT id, amount FROM orders ORDER BY id") == [(1, 12), (2, 20), (3, 30)]


def test_a_job_that_went_back_deletes_its_later_rows_by_their_batch(spark: SparkSession, database: Database) -> None:
    first = PostgresSink(database.url, "orders", batch_column="batch")
    for batch_id in range(3):
        token = first.prepare(ids(spark, batch_id), context(batch_id))
        first.publish(token)
    second = PostgresSink(database.url, "orders", batch_column="batch")
    second.recover(context(1, attempt=2))
    assert database.rows("SELECT id, batch FROM orders ORDER BY id") == [(0, 0), (1, 1)]
    with pytest.raises(SinkOccupiedError):
        first.publish(first.prepare(ids(spark, 9), context(9)))
    second.publish(second.prepare(ids(spark, 5), context(2, attempt=2)))
    assert database.ids() == [0, 1, 5]


@pytest.mark.exhaustive  # the model of the database shows it in the fast tier
def test_a_job_that_went_back_and_cannot_delete_rows_says_so(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
    for batch_id in range(3):
        sink.publish(sink.prepare(ids(spark, batch_id), context(batch_id)))
    with pytest.raises(SinkOccupiedError, match="batch column"):
        PostgresSink(database.url, "orders").recover(context(1, attempt=2))
    PostgresSink(database.url, "orders").recover(context(2, attempt=2))  # a restart without earlier rows


def test_types_of_spark_arrive_as_types_of_postgresql(spark: SparkSession, database: Database) -> None:
    database.run(
        "CREATE SCHEMA sales; CREATE TABLE sales.kinds (t text, b boolean, d numeric, f double precision, "
        "at timestamptz, day date, raw bytea, list bigint[], struct jsonb, map jsonb, serial bigserial)"
    )
    frame = spark.sql(
        "SELECT 'a\\tb\\n' AS t, true AS b, CAST(1.50 AS DECIMAL(9,2)) AS d, 0.5D AS f, "
        "TIMESTAMP '2026-01-02 03:04:05 UTC' AS at, DATE '2026-01-02' AS day, X'00FF' AS raw, array(1L, null) AS list, "
        "named_struct('n', 1) AS struct, map('k', 2) AS map "
        "UNION ALL SELECT null, null, null, null, null, null, null, null, null, null"
    )
    sink = PostgresSink(database.url, "sales.kinds")
    sink.publish(sink.prepare(frame, context()))
    full, empty = database.rows("SELECT * FROM sales.kinds ORDER BY t NULLS LAST")
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    expected = (
        "a\tb\n",
        True,
        Decimal("1.50"),
        0.5,
        moment,
        dt.date(2026, 1, 2),
        b"\x00\xff",
        [1, None],
        {"n": 1},
        {"k": 2},
    )
    assert full[:10] == expected
    assert empty[:10] == (None,) * 10


def test_rows_that_the_table_forbids_fail_the_batch_before_its_commit_without_their_data(
    spark: SparkSession, database: Database
) -> None:
    frame = spark.createDataFrame([(1, -424242)], "id bigint, amount bigint")
    with pytest.raises(Exception, match="orders_amount_check") as failure:
        PostgresSink(database.url, "orders").prepare(frame, context())
    assert isinstance(typed_failure(failure.value), SinkRowsRefusedError)
    assert "424242" not in str(failure.value)
    assert database.staged() == []


def test_a_column_that_would_round_values_is_refused_before_the_first_row(
    spark: SparkSession, database: Database
) -> None:
    database.run("CREATE TABLE prices (id bigint PRIMARY KEY, price numeric(10, 1))")
    frame = spark.sql("SELECT 1L AS id, CAST(1.23 AS decimal(10, 2)) AS price")
    with pytest.raises(SinkRowsRefusedError, match=r"price \(decimal\(10,2\) into numeric\(10, ?1\)\)"):
        PostgresSink(database.url, "prices").prepare(frame, context())
    rounded = frame.withColumn("price", frame["price"].cast("decimal(10, 1)"))
    assert PostgresSink(database.url, "prices").prepare(rounded, context())


def test_a_unique_key_refuses_a_row_before_the_commit_and_leaves_the_table_as_it_was(
    spark: SparkSession, database: Database
) -> None:
    database.run("INSERT INTO orders VALUES (2, 0, 0)")
    sink = PostgresSink(database.url, "orders")
    with pytest.raises(SinkRowsRefusedError, match="orders_pkey"):
        sink.prepare(ids(spark, 1, 2), context())
    assert (database.ids(), database.staged()) == ([2], [])
    database.run("DELETE FROM orders")
    sink.publish(sink.prepare(ids(spark, 1, 2), context(unique="bbbbbbbb")))
    assert database.ids() == [1, 2]


CONSTRAINTS = {
    "a reference": "FOREIGN KEY (id) REFERENCES customers",
    "a deferred reference": "FOREIGN KEY (id) REFERENCES customers DEFERRABLE INITIALLY DEFERRED",
    "an exclusion": "EXCLUDE USING btree ((id % 2) WITH =)",
    "a deferred unique key": "UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED",
}


@pytest.mark.parametrize("kind", short_form(CONSTRAINTS, ["a deferred reference"]))
def test_no_constraint_is_left_for_after_the_commit(spark: SparkSession, database: Database, kind: str) -> None:
    database.run("CREATE TABLE customers (id bigint PRIMARY KEY)")
    database.run(f"ALTER TABLE orders ADD CONSTRAINT wrong {CONSTRAINTS[kind]}")
    frame = spark.sql("SELECT id, 7 AS amount FROM range(1, 4)")
    with pytest.raises(SinkRowsRefusedError, match="wrong"):
        PostgresSink(database.url, "orders").prepare(frame, context())
    assert (database.ids(), database.staged()) == ([], [])


def test_rows_of_a_sink_may_refer_to_rows_of_another_sink_in_the_same_batch(
    spark: SparkSession, database: Database
) -> None:
    database.run("CREATE TABLE items (order_id bigint REFERENCES orders)")
    orders, items = PostgresSink(database.url, "orders"), PostgresSink(database.url, "items")
    for batch_id, numbers in enumerate(([1, 2], [3])):
        of_orders = orders.prepare(ids(spark, *numbers), context(batch_id))
        of_items = items.prepare(ids(spark, *numbers).toDF("order_id"), context(batch_id, uid="items"))
        assert len(database.ids()) < max(numbers)
        orders.publish(of_orders)
        items.publish(of_items)
    assert database.ids() == [1, 2, 3]
    assert database.rows("SELECT order_id FROM items ORDER BY order_id") == [(1,), (2,), (3,)]
    assert database.staged() == []


def test_two_sinks_may_update_the_same_row_in_the_same_batch(spark: SparkSession, database: Database) -> None:
    first, second = (PostgresSink(database.url, "orders", keys=["id"]) for _ in range(2))
    tokens = [
        sink.prepare(spark.sql(f"SELECT 1L AS id, {amount}L AS amount"), context(uid=f"sink-{amount}"))
        for amount, sink in enumerate((first, second))
    ]
    for sink, token in zip((first, second), tokens, strict=True):
        sink.publish(token)
    assert database.rows("SELECT id, amount FROM orders") == [(1, 1)]


def test_a_batch_is_published_from_its_staging_table_if_the_transaction_is_lost(
    spark: SparkSession, database: Database
) -> None:
    sink = PostgresSink(database.url, "orders")
    sink.recover(context(-1))
    token = sink.prepare(ids(spark, 1, 2), context())
    database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    with pytest.raises(SinkUnavailableError):  # whether it was committed is unknown
        sink.publish(token)
    sink.publish(token)
    sink.publish(token)
    assert (database.ids(), database.staged()) == ([1, 2], [])


def test_rows_that_another_writer_has_locked_are_written_when_they_are_published(
    spark: SparkSession, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_moves, "_BEGIN", ("SET lock_timeout = '100ms'",))
    database.run("INSERT INTO orders VALUES (1, 0, 0)")
    sink = PostgresSink(database.url, "orders", keys=["id"])
    frame = spark.sql("SELECT 1L AS id, 5L AS amount")
    with psycopg.connect(database.url) as other:
        other.execute("UPDATE orders SET amount = 1")
        token = sink.prepare(frame, context())
    sink.publish(token)
    assert database.rows("SELECT id, amount FROM orders") == [(1, 5)]


def test_a_new_attempt_ends_the_transaction_of_a_driver_that_hangs(spark: SparkSession, database: Database) -> None:
    PostgresSink(database.url, "orders").prepare(ids(spark, 7), context(0, attempt=1))
    hung = OpenMoves._of_jobs.pop((database.url, "job"))  # as if it were another process's
    of_neighbour = replace(context(0, attempt=1), job_id="neighbour")
    neighbour = OpenMoves.of(database.url, of_neighbour)
    PostgresSink(database.url, "orders").recover(context(-1, attempt=2))
    assert database.staged() == []
    with pytest.raises(SinkUnavailableError):
        hung.try_move(sql.SQL("SELECT {}").format(1), {})
    assert neighbour.try_move(sql.SQL("SELECT {}").format(1), {}) is None
    OpenMoves.close(database.url, "neighbour")


def test_refused_rows_are_dead_letters_and_all_other_rows_are_written(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE customers (id bigint PRIMARY KEY); INSERT INTO customers SELECT generate_series(0, 30);"
        "ALTER TABLE orders ADD name varchar(5), ADD customer bigint REFERENCES customers;"
        "INSERT INTO orders VALUES (5, 0, 0)"
    )
    rows = [(number, number, "name", number) for number in range(30)]
    rows[3] = (3, -1, "name", 3)  # while it is copied: a check, a length, a byte that no text may have
    rows[11] = (11, 11, "too long", 11)
    rows[12] = (12, 12, "a\0b", 12)
    rows[20] = (20, 20, "name", 99)  # while it is moved: a foreign key, a row of an earlier batch, one of the same
    rows += [(1, 100, "name", 1)]
    frame = spark.createDataFrame(rows, "id bigint, amount bigint, name string, customer bigint").coalesce(1)

    def sink() -> PostgresSink:
        return PostgresSink(database.url, "orders", dead_letters=FileSink(str(tmp_path), format="json"))

    first = sink()
    first.recover(context(-1))
    token = first.prepare(frame, context())
    assert first.dead_letters_of(token) == 6
    assert database.ids() == [5]
    first.publish(token)
    sink().publish(token)
    assert database.ids() == [number for number in range(30) if number not in {3, 11, 12, 20}]
    assert database.rows("SELECT amount FROM orders WHERE id IN (1, 5) ORDER BY id") == [(1,), (0,)]
    letters = spark.read.json(str(tmp_path)).collect()
    refused = {(row["id"], row["amount"]): letter.error for letter in letters for row in [json.loads(letter.row)]}
    assert {place: error.partition(" ")[0].strip(",") for place, error in refused.items()} == {
        (3, -1): "CheckViolation",
        (11, 11): "StringDataRightTruncation",
        (12, 12): "DataError",
        (20, 20): "ForeignKeyViolation",
        (5, 5): "UniqueViolation",
        (1, 100): "UniqueViolation",
    }
    assert "orders_customer_fkey" in refused[20, 20]
    assert all(set(json.loads(letter.row)) == {"id", "amount", "name", "customer"} for letter in letters)
    assert database.staged() == []


def test_a_batch_whose_transaction_is_lost_is_published_without_its_dead_letters(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.run("INSERT INTO orders VALUES (2, 0, 0)")
    sink = PostgresSink(database.url, "orders", dead_letters=FileSink(str(tmp_path), format="json"))
    token = sink.prepare(ids(spark, 1, 2, 3), context())
    OpenMoves.close(database.url, "job")
    sink.publish(token)
    assert database.ids() == [1, 2, 3]
    assert [json.loads(letter.row)["id"] for letter in spark.read.json(str(tmp_path)).collect()] == [2]


def test_a_batch_of_nothing_but_refused_rows_ends_at_a_limit(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "REFUSED_MAX", 3)
    database.run("INSERT INTO orders SELECT generate_series(0, 9)")
    sink = PostgresSink(database.url, "orders", dead_letters=FileSink(str(tmp_path), format="json"))
    with pytest.raises(SinkRowsRefusedError, match="more than 3 rows"):
        sink.prepare(ids(spark, *range(10)), context())
    assert database.staged() == []


def test_a_value_that_no_database_can_hold_is_no_outage(spark: SparkSession, database: Database) -> None:
    database.run("ALTER TABLE orders ADD name text")
    with pytest.raises(Exception, match="PostgreSQL refuses: DataError") as failure:
        PostgresSink(database.url, "orders").prepare(spark.sql("SELECT 1L AS id, 'a\\u0000b' AS name"), context())
    assert isinstance(typed_failure(failure.value), SinkRowsRefusedError)


@pytest.mark.parametrize(
    ("table", "keys", "wrong"),
    [
        ("absent", (), "UndefinedTable"),
        ("orders", ("amount",), "InvalidColumnReference"),
        ("orders", ("x",), "no column x"),
    ],
)
def test_rows_that_could_never_be_published_are_refused_before_anything_runs(
    spark: SparkSession, database: Database, table: str, keys: tuple[str, ...], wrong: str
) -> None:
    frame = ids(spark, 1).selectExpr("id", "raise_error('ran') AS amount")
    with pytest.raises(SinkRowsRefusedError, match=wrong):
        PostgresSink(database.url, table, keys=keys).prepare(frame, context())
    assert database.staged() == []


def test_the_error_of_an_unreachable_database_does_not_have_its_password(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_DB", "postgresql://me:hunter2@127.0.0.1:1/none")
    with pytest.raises(SinkUnavailableError) as failure:
        PostgresSink(Secret("DB"), "orders").prepare(ids(spark, 1), context())
    assert failure.value.retryable
    assert "hunter2" not in repr(failure.value)
    assert failure.value.__suppress_context__


@pytest.mark.exhaustive  # the real tier refuses an unrelated job below
def test_a_fork_is_refused_the_table_of_the_job_that_runs_on_and_leaves_its_rows_and_transaction_alone(
    spark: SparkSession, database: Database
) -> None:
    database.run("CREATE TABLE copies (id bigint, batch bigint)")
    original = PostgresSink(database.url, "orders", batch_column="batch")
    original.recover(context(-1))
    original.publish(original.prepare(ids(spark, 1), context(0)))
    running = original.prepare(ids(spark, 2), context(1))
    for table in ("orders", "public.orders"):
        with pytest.raises(SinkOccupiedError, match=f"sink orders of job job writes to table {table}"):
            PostgresSink(database.url, table, batch_column="batch").recover(fork(0))
    own = PostgresSink(database.url, "copies", batch_column="batch")
    own.recover(fork(0))
    for batch_id in (1, 2):
        own.publish(own.prepare(ids(spark, 10 + batch_id), fork(batch_id, unique=f"{batch_id:08}")))
    PostgresSink(database.url, "copies", batch_column="batch").recover(fork(1, attempt=2))
    original.publish(running)
    assert database.ids() == [1, 2]
    assert database.rows("SELECT id FROM copies") == [(11,)], "the fork has gone back to batch 1"
    OpenMoves.close(database.url, "fork")


def other(name: str, *, origin: str | None = None) -> SinkContext:
    return replace(context(0), job_id=name, forked_from=origin)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("origin", [None, "fork"], ids=["an unrelated job", "a fork of a fork"])
def test_no_other_job_may_write_to_a_jobs_table(database: Database, origin: str | None) -> None:
    PostgresSink(database.url, "orders").recover(context(-1))
    another = other("another", origin=origin)
    for _ in range(2):
        with pytest.raises(SinkOccupiedError, match=r"sink orders of job job writes to table orders.* shared=True"):
            PostgresSink(database.url, "orders").recover(another)
    PostgresSink(database.url, "orders").recover(context(0, attempt=2))


@pytest.mark.usefixtures("spark")
def test_a_job_that_changes_its_table_is_refused_another_jobs_and_lets_its_own_go(database: Database) -> None:
    database.run("CREATE TABLE copies (id bigint)")
    PostgresSink(database.url, "orders").recover(context(-1))
    PostgresSink(database.url, "copies").recover(other("another"))
    with pytest.raises(SinkOccupiedError, match="sink orders of job another writes to table copies"):
        PostgresSink(database.url, "copies").recover(context(0, attempt=2))
    database.run(f"DELETE FROM {MARKERS} WHERE job_id = 'another'")  # noqa: S608 - ours
    PostgresSink(database.url, "copies").recover(context(0, attempt=3))
    PostgresSink(database.url, "orders").recover(other("another"))


@pytest.mark.parametrize("is_published", short_form([True, False], [False]))
@pytest.mark.parametrize("schema", short_form(["public", "sales"], ["sales"]))
def test_a_batch_is_published_where_it_was_staged_after_the_jobs_table_has_changed(
    spark: SparkSession, database: Database, schema: str, is_published: bool
) -> None:
    database.run("CREATE SCHEMA sales")
    database.run(f"CREATE TABLE {schema}.copies (id bigint)")
    before, after = (
        PostgresSink(database.url, "orders", batch_column="batch"),
        PostgresSink(database.url, f"{schema}.copies"),
    )
    before.recover(context(-1))
    token = before.prepare(ids(spark, 1, 2), context(0))
    if is_published:
        before.publish(token)
    OpenMoves.close(database.url, "job")
    after.publish(token)
    after.recover(context(0, attempt=2))
    after.publish(after.prepare(ids(spark, 3), context(1, attempt=2)))
    assert database.rows("SELECT id, batch FROM orders ORDER BY id") == [(1, 0), (2, 0)]
    assert database.rows(f"SELECT id FROM {schema}.copies") == [(3,)]  # noqa: S608 - ours
    assert [name for name in database.stages() if "_1_0_" in name] == [], "that of attempt 1 and batch 0 is dropped"


@pytest.mark.exhaustive
def test_a_job_whose_database_has_changed_goes_on_in_the_new_one(
    spark: SparkSession, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.run("CREATE DATABASE elsewhere")
    elsewhere = Database(make_conninfo(database.url, dbname="elsewhere"))
    elsewhere.run("CREATE TABLE orders (id bigint); CREATE TABLE others (id bigint)")
    before, after = PostgresSink(database.url, "orders"), PostgresSink(elsewhere.url, "orders")
    before.recover(context(-1))
    token = before.prepare(ids(spark, 1), context(0))
    before.publish(token)
    PostgresSink(elsewhere.url, "others").recover(other("another"))  # so the table of markers is there
    after.publish(token)
    assert "sink orders: batch 0 is not found in this database" in caplog.text
    after.recover(context(0, attempt=2))
    after.publish(after.prepare(ids(spark, 2), context(1, attempt=2)))
    assert (database.ids(), elsewhere.ids()) == ([1], [2])
    OpenMoves.close(elsewhere.url, "job")
    database.run("DROP DATABASE elsewhere")


@pytest.mark.usefixtures("spark")
def test_jobs_share_a_table_if_their_sinks_say_so(database: Database) -> None:
    PostgresSink(database.url, "orders", shared=True).recover(context(-1))
    PostgresSink(database.url, "orders", shared=True).recover(other("another"))
    with pytest.raises(SinkOccupiedError, match="job another"):
        PostgresSink(database.url, "orders").recover(other("third"))
    PostgresSink(database.url, "orders").recover(context(0, attempt=2))  # it has written there before
    with pytest.raises(InvalidTopologyError, match="its own table"):
        PostgresSink(database.url, "orders", shared=True, batch_column="batch")


@pytest.mark.usefixtures("spark")
def test_of_two_jobs_that_start_at_the_same_time_one_gets_the_table(database: Database) -> None:
    PostgresSink(database.url, "orders").recover(context(-1))
    database.run(f"DELETE FROM {MARKERS}")  # noqa: S608 - ours
    refused = []

    def start(name: str) -> None:
        try:
            PostgresSink(database.url, "orders").recover(other(name))
        except SinkOccupiedError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start, args=(name,)) for name in ("one", "two")]
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(database.url) as holder:
        holder.execute(f"LOCK TABLE {MARKERS} IN SHARE MODE".encode())  # reads pass
        for thread in threads:
            thread.start()
        wait_until(lambda: len(database.rows(waiting)) == len(threads), 30.0, what="both starts to wait")
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert len(database.rows(f"SELECT 1 FROM {MARKERS}")) == 1  # noqa: S608 - ours


@pytest.mark.exhaustive  # the sink of files shows what a fork takes over
def test_a_fork_takes_a_table_over_once_the_other_jobs_marker_is_gone(spark: SparkSession, database: Database) -> None:
    original, heir = (PostgresSink(database.url, "orders") for _ in range(2))
    original.recover(context(-1))
    original.publish(original.prepare(ids(spark, 1), context(0)))
    database.run(f"DELETE FROM {MARKERS} WHERE job_id = 'job'")  # noqa: S608 - ours
    heir.recover(fork(0))
    heir.publish(heir.prepare(ids(spark, 2), fork(1)))
    assert database.ids() == [1, 2]
    OpenMoves.close(database.url, "fork")


@pytest.mark.usefixtures("spark")
def test_markers_of_an_earlier_version_get_the_column_and_guard_by_the_uid(database: Database) -> None:
    database.run(
        f"CREATE TABLE {MARKERS} (job_id text, uid text, attempt bigint NOT NULL, batch_id bigint NOT NULL,"
        " published_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job_id, uid))"
    )
    database.run(f"INSERT INTO {MARKERS} VALUES ('job', 'orders', 1, 5)")  # noqa: S608 - ours
    with pytest.raises(SinkOccupiedError, match="job job"):
        PostgresSink(database.url, "orders").recover(fork(5))
    PostgresSink(database.url, "orders").recover(context(5, attempt=2))
    assert database.rows(f"SELECT job_id, target FROM {MARKERS}") == [("job", "public.orders")]  # noqa: S608 - ours


@pytest.mark.exhaustive
def test_a_function_as_the_guide_writes_it_touches_no_rows_of_the_job_that_runs_on(
    spark: SparkSession, database: Database
) -> None:
    database.run("CREATE TABLE target (job text, batch bigint, id bigint)")
    database.run("CREATE TABLE done (job text, uid text, attempt bigint, PRIMARY KEY (job, uid))")

    def write(frame: DataFrame, given: SinkContext) -> None:
        with psycopg.connect(database.url) as connection:
            key = (given.job_id, given.uid)
            connection.execute("INSERT INTO done VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", key)
            last = connection.execute("SELECT attempt FROM done WHERE job = %s AND uid = %s FOR UPDATE", key).fetchone()
            if last is not None and last[0] > given.attempt:
                raise RuntimeError("a newer attempt has taken over")
            connection.execute("DELETE FROM target WHERE job = %s AND batch >= %s", (given.job_id, given.batch_id))
            for row in frame.collect():
                connection.execute("INSERT INTO target VALUES (%s, %s, %s)", (given.job_id, given.batch_id, row.id))
            connection.execute("UPDATE done SET attempt = %s WHERE job = %s AND uid = %s", (given.attempt, *key))

    original, forked = ForeachBatchSink(write), ForeachBatchSink(write)
    original.prepare(ids(spark, 1), context(0))
    original.prepare(ids(spark, 2), context(1))
    forked.recover(fork(0))
    for _ in range(2):
        forked.prepare(ids(spark, 9), fork(1))
    original.prepare(ids(spark, 3), context(2))
    assert database.rows("SELECT job, batch, id FROM target ORDER BY job, batch") == [
        ("fork", 1, 9),
        ("job", 0, 1),
        ("job", 1, 2),
        ("job", 2, 3),
    ]
