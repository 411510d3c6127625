"""Rows appear in PostgreSQL a batch at a time, once, and only those that were committed."""

from __future__ import annotations

import datetime as dt
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from jobs import PostgresSink, Secret, SinkContext
from jobs.errors import SinkOccupiedError, SinkPublishError, SinkRowsRefusedError, SinkUnavailableError
from jobs.runtime.failures import typed_failure
from jobs.sinks.postgres import MARKERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def context(batch_id: int = 0, *, attempt: int = 1, unique: str = "aaaaaaaa", uid: str = "orders") -> SinkContext:
    return SinkContext(job_id="job", uid=uid, batch_id=batch_id, attempt=attempt, unique=unique)


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

    def staged(self) -> list[str]:
        rows = self.rows("SELECT tablename FROM pg_tables WHERE starts_with(tablename, '_keyscale_')")
        return sorted(row[0] for row in rows if row[0] != MARKERS)


@pytest.fixture
def database(postgres_url: str) -> Database:
    made = Database(postgres_url)
    made.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint CHECK (amount >= 0), batch bigint)")
    return made


def ids(spark: SparkSession, *wanted: int) -> DataFrame:
    return spark.createDataFrame([(number,) for number in wanted], "id bigint").repartition(3)


def test_nothing_is_seen_before_publish_and_all_of_it_after(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
    token = sink.prepare(ids(spark, 1, 2, 3), context())
    assert database.ids() == []
    sink.publish(token)
    assert database.ids() == [1, 2, 3]
    assert database.staged() == []


def test_a_batch_that_is_published_again_also_by_two_at_once_is_there_once(
    spark: SparkSession, database: Database
) -> None:
    database.run("ALTER TABLE orders DROP CONSTRAINT orders_pkey")  # else a second try would be refused by it
    sink = PostgresSink(database.url, "orders")
    sink.recover(context(-1))
    token = sink.prepare(ids(spark, *range(100)), context())
    publishers = [threading.Thread(target=PostgresSink(database.url, "orders").publish, args=(token,)) for _ in "1234"]
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.join()
    PostgresSink(database.url, "orders").publish(token)  # as the next attempt does at its start
    assert database.ids() == list(range(100))


def test_rows_of_a_task_that_the_driver_has_not_heard_of_do_not_count(spark: SparkSession, database: Database) -> None:
    """Such as a task whose executor was taken for lost and was not."""
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


def test_a_new_attempt_removes_what_older_ones_have_left_and_shuts_them_out(
    spark: SparkSession, database: Database
) -> None:
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


def test_a_staged_batch_that_is_gone_is_told(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
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


def test_a_job_that_went_back_takes_its_later_rows_back_by_their_batch(spark: SparkSession, database: Database) -> None:
    first = PostgresSink(database.url, "orders", batch_column="batch")
    for batch_id in range(4):
        token = first.prepare(ids(spark, batch_id), context(batch_id))
        first.publish(token)
    second = PostgresSink(database.url, "orders", batch_column="batch")
    second.recover(context(1, attempt=2))
    assert database.rows("SELECT id, batch FROM orders ORDER BY id") == [(0, 0), (1, 1)]
    with pytest.raises(SinkOccupiedError):
        first.publish(first.prepare(ids(spark, 9), context(9)))
    second.publish(second.prepare(ids(spark, 5), context(2, attempt=2)))
    assert database.ids() == [0, 1, 5]


def test_a_job_that_went_back_and_cannot_take_rows_back_says_so(spark: SparkSession, database: Database) -> None:
    sink = PostgresSink(database.url, "orders")
    for batch_id in range(3):
        sink.publish(sink.prepare(ids(spark, batch_id), context(batch_id)))
    with pytest.raises(SinkOccupiedError, match="batch column"):
        PostgresSink(database.url, "orders").recover(context(1, attempt=2))
    PostgresSink(database.url, "orders").recover(context(2, attempt=2))  # a restart that goes back behind nothing


def test_types_of_spark_arrive_as_types_of_postgresql(spark: SparkSession, database: Database) -> None:
    database.run(
        "CREATE SCHEMA sales; CREATE TABLE sales.kinds (t text, b boolean, d numeric, f double precision, at timestamptz, "
        "day date, raw bytea, list bigint[], struct jsonb, map jsonb, serial bigserial)"
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


def test_a_unique_key_refuses_a_row_at_publish_and_leaves_the_table_as_it_was(
    spark: SparkSession, database: Database
) -> None:
    database.run("INSERT INTO orders VALUES (2, 0, 0)")
    sink = PostgresSink(database.url, "orders")
    token = sink.prepare(ids(spark, 1, 2), context())
    with pytest.raises(SinkRowsRefusedError, match="orders_pkey"):
        sink.publish(token)
    assert database.ids() == [2]
    database.run("DELETE FROM orders")
    sink.publish(token)
    assert database.ids() == [1, 2]


@pytest.mark.parametrize(
    ("table", "keys", "wrong"),
    [
        ("absent", (), "UndefinedTable"),
        ("orders", ("amount",), "InvalidColumnReference"),
        ("orders", ("x",), "no column x"),
    ],
)
def test_what_could_never_be_published_is_refused_before_anything_runs(
    spark: SparkSession, database: Database, table: str, keys: tuple[str, ...], wrong: str
) -> None:
    frame = ids(spark, 1).selectExpr("id", "raise_error('ran') AS amount")
    with pytest.raises(SinkRowsRefusedError, match=wrong):
        PostgresSink(database.url, table, keys=keys).prepare(frame, context())
    assert database.staged() == []


def test_a_database_that_is_away_is_told_without_its_password(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_DB", "postgresql://me:hunter2@127.0.0.1:1/none")
    with pytest.raises(SinkUnavailableError) as failure:
        PostgresSink(Secret("DB"), "orders").prepare(ids(spark, 1), context())
    assert failure.value.retryable
    assert "hunter2" not in repr(failure.value)
    assert failure.value.__suppress_context__
