"""The migrations make exactly the tables of the models."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint, LargeBinary, MetaData, func, inspect, select, text
from sqlalchemy.dialects.postgresql import JSONB

from keyscale.db.base import Base
from keyscale.db.connections import open_engine
from keyscale.db.errors import SchemaTooNewError
from keyscale.db.migrate import alembic_config, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Column, Connection, Table


def test_migrated_tables_equal_the_models(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        made = inspect(connection)
        for table in Base.metadata.sorted_tables:
            checks = {check["name"] for check in made.get_check_constraints(table.name)}
            assert checks == {check.name for check in table.constraints if isinstance(check, CheckConstraint)}
    engine.dispose()


def test_migrating_again_changes_nothing_and_going_back_leaves_nothing(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    migrate(engine)
    with engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    migrate(engine)
    engine.dispose()


def test_each_migration_goes_up_and_back_with_data_in_every_table(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    config = alembic_config()
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()][::-1]
    kept: dict[str, int] = {}
    for revision, after in zip(revisions, [*revisions[1:], None], strict=True):
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            fill_tables(connection)
            kept = row_counts(connection)
            assert min(kept.values()) > 0, kept
        if after is None:
            break
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, after)
            names = RENAMED.get(after, {})
            expected = {names.get(table, table): count for table, count in kept.items()}
            assert row_counts(connection).items() >= expected.items(), f"{after} loses rows"
            fill_tables(connection)
            command.downgrade(config, revision)
            assert row_counts(connection).keys() == kept.keys()
            command.upgrade(config, after)
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


RENAMED = {"0016": {"rescales": "changes"}}


def row_counts(connection: Connection) -> dict[str, int]:
    tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
    return {table: connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0 for table in tables}  # noqa: S608 - ours


def fill_tables(connection: Connection) -> None:
    """Adds a row to every empty table, whatever its columns are at this revision."""
    found = MetaData()
    found.reflect(connection)
    for table in found.sorted_tables:
        if table.name == "alembic_version" or connection.scalar(select(func.count()).select_from(table)):
            continue
        values = {column.name: value_of(connection, table, column) for column in table.columns if needs_value(column)}
        connection.execute(table.insert().values(values))


def needs_value(column: Column[Any]) -> bool:
    return not column.nullable and column.server_default is None and column.identity is None


def value_of(connection: Connection, table: Table, column: Column[Any]) -> Any:
    for key in column.foreign_keys:
        return connection.scalar(select(key.column).limit(1))
    for check in inspect(connection).get_check_constraints(table.name):
        if f"({column.name})::" in check["sqltext"] or f"{column.name}::" in check["sqltext"]:
            allowed = re.search(r"'([A-Z_]+)'", check["sqltext"])
            assert allowed
            return allowed[1]
    if isinstance(column.type, JSONB):
        return {}
    if isinstance(column.type, LargeBinary):
        return b"x"
    return {bool: False, int: 1}.get(column.type.python_type, "x")


def test_a_database_of_a_newer_version_is_refused(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaTooNewError, match="9999"):
        migrate(engine)
    engine.dispose()


@contextmanager
def database_of(postgres_url: str, revision: str) -> Iterator[Connection]:
    """A database at a revision, with a job `j`, to be filled in a transaction."""
    engine = open_engine(postgres_url)
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.execute(
            text(
                "INSERT INTO artifacts (id, name, version, filename, kind, sha256, size_bytes, created_at_ms)"
                " VALUES ('a', 'a', 1, 'a.py', 'PYTHON', 'x', 1, 1)"
            )
        )
        columns = {column["name"]: column for column in inspect(connection).get_columns("jobs")}
        row = {name: "1" for name, column in columns.items() if not column["nullable"] and column["default"] is None}
        row |= {"id": "j", "desired": "STOPPED", "status": "STOPPED"}
        row |= {"artifact_id": "a"} if "artifact_id" in columns else {}
        row |= {name: "{}" for name, column in columns.items() if str(column["type"]) == "JSONB" and name in row}
        names = ", ".join(row)
        values = ", ".join(f"'{value}'" for value in row.values())
        connection.execute(text(f"INSERT INTO jobs ({names}) VALUES ({values})"))  # noqa: S608 - constants
        yield connection
    engine.dispose()


def test_a_delay_that_no_version_can_work_with_is_lowered_when_the_database_is_migrated(postgres_url: str) -> None:
    restart = '{"type": "fixed-delay", "delay_ms": 10000000000000000000, "attempts": 2}'
    with database_of(postgres_url, "0011") as connection:
        connection.execute(text("UPDATE jobs SET restart = CAST(:restart AS jsonb)"), {"restart": restart})
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.connect() as connection:
        lowered = connection.scalar(text("SELECT restart FROM revisions"))
        assert lowered == {"type": "fixed-delay", "delay_ms": 31_536_000_000, "attempts": 2}
    engine.dispose()


def test_a_mean_of_before_weighs_the_samples_that_had_values_and_stays_within_its_bounds(postgres_url: str) -> None:
    with database_of(postgres_url, "0024") as connection:
        for slot, rate, busy in ((1, None, None), (2, 100.0, None), (3, 1e300, 0.5)):
            connection.execute(
                text(
                    "INSERT INTO series_points (job_id, step_ms, slot, at_ms, samples, processed_rate, busy_ratio)"
                    " VALUES ('j', 10000, :slot, :slot, 5000, :rate, :busy)"
                ),
                {"slot": slot, "rate": rate, "busy": busy},
            )
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT samples, busy_samples, processed_rate FROM series_points ORDER BY slot"))
        assert [tuple(row) for row in rows] == [(0, 0, None), (5000, 0, 100.0), (5000, 5000, 1e15)]
    engine.dispose()
