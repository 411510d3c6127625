"""SQL over state: what it answers, and where hostile statements end."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.state.inspection.state_point import ForeignStateError
from keyscale.state_io import StateReader, sql, sql_process
from keyscale.state_io.snapshot_sql import SqlRequest, run_statement
from keyscale.state_io.sql import SqlLimitError, SqlLimits, SqlReadError, SqlStatementError, query
from keyscale.state_io.sql_process import StateDatabase
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import KEYS, KINDS, SAVEPOINT, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAVEPOINT_V1 = GOLDEN / "savepoint-v1"
LOCATION = f"{SAVEPOINT_V1.as_uri()}/every-kind/savepoints/{SAVEPOINT}/manifest.json"


@pytest.fixture(scope="module")
def database() -> Iterator[StateDatabase]:
    with (
        StateReader.open(LOCATION, shards_open=8) as state,
        StateDatabase(state.tables(), 128 << 20) as opened,
    ):
        yield opened


def rows(database: StateDatabase, statement: str) -> list[dict[str, Any]]:
    with database.rows(statement) as found:
        result: list[dict[str, Any]] = found.read_all().to_pylist()
    return result


def test_states_are_tables_whose_keys_have_fields(database: StateDatabase) -> None:
    found = rows(database, "select key.name, map_key, value from totals.map where key.number = 5 order by map_key")
    assert [(row["name"], row["map_key"], row["value"]) for row in found] == [
        ("a\0b", name, count) for name, count in KINDS["map"]
    ]


def test_a_statement_can_read_a_state_twice_and_join_states(database: StateDatabase) -> None:
    statement = (
        "select count(*) n from totals.map a join totals.map b using (key, map_key) join totals.list using (key)"
    )
    assert rows(database, statement) == [{"n": len(KEYS) * len(KINDS["map"]) * len(KINDS["list"])}]


@pytest.mark.parametrize(
    ("rows_max", "written", "is_cut"), [(9, 5, False), (5, 5, False), (4, 4, True), (3, 3, True), (1, 1, True)]
)
def test_the_rows_are_cut_at_their_limit_over_all_batches(
    monkeypatch: pytest.MonkeyPatch, rows_max: int, written: int, is_cut: bool
) -> None:
    batches = [pa.record_batch({"n": part}) for part in ([0, 1, 2], [3], [4])]
    out = pa.BufferOutputStream()
    monkeypatch.setattr(sql_process.sys, "stdout", SimpleNamespace(buffer=out))
    rows = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    assert sql_process._write(rows, rows_max) is is_cut
    monkeypatch.undo()
    assert pa.ipc.open_stream(out.getvalue()).read_all()["n"].to_pylist() == [*range(written)]


@pytest.mark.parametrize("name", VALUES)
def test_values_of_each_type_keep_their_value(database: StateDatabase, name: str) -> None:
    assert [row["value"] for row in rows(database, f"select value from totals.{name}")] == [VALUES[name][1]] * len(KEYS)  # noqa: S608


@pytest.mark.parametrize(
    "statement",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/hostname')",
        "select * from glob('/*')",
        "select * from '/etc/passwd'",
        "copy (select 1) to '{folder}/x.csv'",
        "export database '{folder}/x'",
        "attach '{folder}/x.db'",
        "install httpfs",
        "load httpfs",
        "select * from read_parquet('https://example.com/x.parquet')",
        "select * from read_parquet('s3://bucket/x.parquet')",
        "create secret (type s3)",
        "set enable_external_access = true",
        "reset lock_configuration",
        "set memory_limit = '100GB'",
        "select 1; set threads = 9",
        "create table t as select 1",
        "drop view totals.map",
        "select list(i) from range(1000000000) t(i)",
        "select repeat('x', 1000000000000)",
        "select getenv('HOME')",
        "call pragma_version()",
        "",
    ],
)
def test_a_hostile_statement_is_refused_and_touches_nothing(
    database: StateDatabase, statement: str, tmp_path: Path
) -> None:
    with pytest.raises((SqlStatementError, SqlLimitError)):
        rows(database, statement.replace("{folder}", str(tmp_path)))
    assert list(tmp_path.iterdir()) == []
    assert rows(database, "select count(*) n from totals.map") == [{"n": len(KEYS) * 2}], "the database goes on"


def test_each_setting_that_opens_a_database_is_closed_and_stays_closed(database: StateDatabase) -> None:
    closed = {
        "allow_community_extensions": "false",
        "allow_unsigned_extensions": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",
        "python_enable_replacements": "false",
        "temp_directory": "",
    }
    found = {row["name"]: row["value"] for row in rows(database, "select name, value from duckdb_settings()")}
    assert {name: found[name] for name in closed} == closed


def test_a_refusal_quotes_the_begin_of_a_long_value(database: StateDatabase) -> None:
    with pytest.raises(SqlStatementError, match=r"^Conversion Error: .*'x{1000}") as refusal:
        rows(database, "select repeat('x', 1000000)::int")
    assert len(str(refusal.value)) == 2000


def test_rows_come_from_a_process_of_their_own_and_are_cut_at_their_limit() -> None:
    limits = SqlLimits(rows_max=3, seconds=300)
    with query(LOCATION, "select key.number n from totals.map order by n", limits) as result:
        assert result.schema.names == ["n"]
        assert result.read_all().num_rows == 3
        assert result.is_truncated


def test_a_statement_ends_at_its_limit_of_time_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(SqlLimitError, match="longer than its limit"):
        query(LOCATION, "select 1", SqlLimits(seconds=0.2), scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_an_endless_statement_ends_at_its_limit_of_time() -> None:
    with (
        pytest.raises(SqlLimitError, match="limit of 5 seconds"),
        query(LOCATION, "select count(*) from range(1000000000000) a, range(1000000)", SqlLimits(seconds=5)) as result,
    ):
        result.read_all()


def test_damaged_state_is_an_error_with_the_code_of_its_cause(tmp_path: Path) -> None:
    shutil.copytree(SAVEPOINT_V1, tmp_path / "store")
    victim = next(path for path in sorted((tmp_path / "store").rglob("files/*")) if path.is_file())
    victim.unlink()
    location = LOCATION.replace(SAVEPOINT_V1.as_uri(), (tmp_path / "store").as_uri())
    with (
        StateReader.open(location) as state,
        StateDatabase(state.tables(), 128 << 20) as database,
        pytest.raises(SqlReadError, match="STATE_OBJECT_NOT_FOUND"),
        database.rows("select * from totals.map") as found,
    ):
        found.read_all()


def request(statement: str, **changes: Any) -> SqlRequest:
    usual: dict[str, Any] = {
        "store_url": SAVEPOINT_V1.as_uri(),
        "job_id": "every-kind",
        "manifest_path": f"every-kind/savepoints/{SAVEPOINT}/manifest.json",
    }
    return SqlRequest(**{**usual, **changes}, statement=statement)


def test_a_jobs_statement_answers_with_columns_and_with_rows_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_process, "_BATCH_ROWS", 2048)  # DuckDB's smallest
    statement = "select i::int as n, 'x' as x from range(3000) t(i) order by i"
    for rows_max, is_truncated in ((3000, False), (2049, True)):
        answer = run_statement(request(statement, rows_max=rows_max))
        assert answer["is_truncated"] is is_truncated
        assert answer["rows"] == [[number, "x"] for number in range(rows_max)]
    assert answer["columns"] == [{"name": "n", "type": "int32"}, {"name": "x", "type": "string"}]


def test_a_jobs_statement_has_its_own_limits_of_memory_and_of_state() -> None:
    statement = "select current_setting('memory_limit')"
    assert run_statement(request(statement, memory_bytes=300 << 20))["rows"] == [["300.0 MiB"]]
    with StateReader.open(LOCATION) as reader:
        assert reader.point.manifest is not None
        size = reader.point.manifest.state_size_bytes
    assert run_statement(request(statement, state_bytes_max=size))["rows"]
    with pytest.raises(SqlLimitError, match=f"has {size:,} bytes, and a statement may read {size - 1:,}"):
        run_statement(request(statement, state_bytes_max=size - 1))
    with pytest.raises(ForeignStateError):
        run_statement(request(statement, job_id="another"))


def test_a_query_gives_its_process_the_statement_and_its_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sql, "SqlResult", lambda request, limits: (request, limits))
    limits = SqlLimits(rows_max=3, seconds=4.5, memory_bytes=6)
    given: Any = query("the location", "the statement", limits, scratch=tmp_path)
    assert given == (
        {
            "location": "the location",
            "statement": "the statement",
            "scratch": str(tmp_path),
            "rows_max": 3,
            "seconds": 4.5,
            "memory_bytes": 6,
        },
        limits,
    )
    usual: Any = query("the location", "the statement")
    assert (usual[0]["scratch"], usual[0]["rows_max"], usual[1]) == (None, 10_000, SqlLimits())
