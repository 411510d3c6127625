"""A migration takes its lock first, and refuses a database with gaps or with rows of a newer version."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from psycopg import errors
from sqlalchemy import Column, Enum, Integer, MetaData, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ProgrammingError

from keyscale.db import migrate as module
from keyscale.db.errors import SchemaForbiddenError, SchemaIncompleteError, SchemaTooNewError, SchemaUnreleasedError
from keyscale.db.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

METADATA = MetaData()
Table("jobs", METADATA, Column("id", Integer), Column("status", Enum("RUNNING", "STOPPED", name="status")))
Table("series_points", METADATA, Column("lag_ms", Integer), Column("restarts", Integer))
Table("tokens", METADATA, Column("id", Integer), Column("role", Enum("VIEWER", "ADMIN", name="role")))


class Database:
    """A database at a revision, as an inspector sees it; what is done to it is kept in order."""

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]

    def __init__(self, current: str | None = "0043") -> None:
        self.current = current
        self.done: list[Any] = []
        self.tables = {table.name: [column.name for column in table.columns] for table in METADATA.sorted_tables}
        self.checks = {
            "jobs": [("ck_jobs_status", "status IN ('RUNNING', 'STOPPED')"), ("ck_jobs_other", "x IN ('Y')")],
            "tokens": [("ck_tokens_role", "role = ANY (ARRAY['VIEWER'::text, 'ADMIN'::text])")],
        }
        self.fails: Exception | None = None

    @contextmanager
    def begin(self) -> Iterator[Database]:
        self.done.append("begin")
        yield self
        self.done.append("commit")

    def execute(self, statement: Any, parameters: dict[str, int] | None = None) -> None:
        if self.fails is not None:
            raise self.fails
        self.done.append(str(statement) if parameters is None else (str(statement), parameters))

    def get_multi_columns(self) -> dict[Any, Any]:
        return {(None, table): [{"name": name} for name in names] for table, names in self.tables.items()}

    def get_multi_check_constraints(self) -> dict[Any, Any]:
        return {
            (None, table): [{"name": name, "sqltext": text} for name, text in checks]
            for table, checks in self.checks.items()
        }

    def get_current_revision(self) -> str | None:
        self.done.append("look")
        return self.current


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()

    @contextmanager
    def without_time_limits(connection: Any) -> Iterator[None]:
        made.done.append("without limits" if connection is made else "?")
        yield
        made.done.append("with limits")

    def upgrade(config: Any, revision: str) -> None:
        assert config.attributes["connection"] is made
        made.done.append(f"upgrade to {revision}")

    revisions = [SimpleNamespace(revision=name) for name in ("0043", "0042", "0001")]
    scripts = SimpleNamespace(walk_revisions=lambda: iter(revisions))
    monkeypatch.setattr(module, "ScriptDirectory", SimpleNamespace(from_config=lambda _: scripts))
    monkeypatch.setattr(module, "MigrationContext", SimpleNamespace(configure=lambda connection: connection))
    monkeypatch.setattr(module, "command", SimpleNamespace(upgrade=upgrade))
    monkeypatch.setattr(module, "inspect", lambda connection: connection)
    monkeypatch.setattr(module, "without_time_limits", without_time_limits)
    monkeypatch.setattr(module, "Base", SimpleNamespace(metadata=METADATA))
    return made


BEGUN = ["begin", "without limits", ("SELECT pg_advisory_xact_lock(:key)", {"key": 0x6B657973}), "look"]


@pytest.mark.parametrize("current", [None, "0001", "0043"])
def test_a_database_is_migrated_under_the_lock_in_one_transaction(database: Database, current: str | None) -> None:
    database.current = current
    migrate(cast("Any", database))
    assert database.done == [*BEGUN, "upgrade to head", "with limits", "commit"]


@pytest.mark.parametrize(("current", "error"), [("0025", SchemaUnreleasedError), ("0044", SchemaTooNewError)])
def test_a_database_at_an_unknown_revision_is_left_alone(
    database: Database, current: str, error: type[Exception]
) -> None:
    database.current = current
    with pytest.raises(error, match=current):
        migrate(cast("Any", database))
    assert database.done == BEGUN


def test_only_the_columns_of_new_metrics_are_added(database: Database) -> None:
    database.tables["series_points"].remove("restarts")
    migrate(cast("Any", database))
    assert database.done[4:6] == ["upgrade to head", "ALTER TABLE series_points ADD COLUMN restarts INTEGER"]
    assert database.done[-1] == "commit"


def test_every_missing_table_and_column_is_named(database: Database) -> None:
    del database.tables["tokens"]
    database.tables["jobs"].remove("status")
    database.tables["series_points"].remove("lag_ms")
    with pytest.raises(SchemaIncompleteError, match=r"the database lacks jobs\.status, tokens$"):
        migrate(cast("Any", database))
    assert "commit" not in database.done


def widened(table: str, column: str, members: str) -> str:
    check = f"ck_{table}_{column}"
    added = f"ADD CONSTRAINT {check} CHECK ({column} IN ({members}))"
    return f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {check}, {added}"


def test_a_check_is_made_wider_for_members_that_it_lacks(database: Database) -> None:
    database.checks["jobs"][0] = ("ck_jobs_status", "status IN ('STOPPED')")
    del database.checks["tokens"]
    migrate(cast("Any", database))
    assert database.done[5:-2] == [
        widened("jobs", "status", "'RUNNING', 'STOPPED'"),
        widened("tokens", "role", "'VIEWER', 'ADMIN'"),
    ]


def test_members_that_only_the_database_knows_are_of_a_newer_version(database: Database) -> None:
    database.checks["tokens"] = [("ck_tokens_role", "role IN ('VIEWER', 'ADMIN', 'OWNER', 'AUDITOR')")]
    with pytest.raises(SchemaTooNewError, match=r"^tokens\.role may be AUDITOR, OWNER, not known here$"):
        migrate(cast("Any", database))
    assert "commit" not in database.done


@pytest.mark.parametrize(
    ("cause", "error"),
    [(errors.InsufficientPrivilege("no"), SchemaForbiddenError), (errors.UndefinedTable("no"), ProgrammingError)],
)
def test_only_a_missing_right_is_told_as_such(database: Database, cause: Exception, error: type[Exception]) -> None:
    database.fails = ProgrammingError("ALTER", None, cause)
    with pytest.raises(error, match="no"):
        migrate(cast("Any", database))
