"""The migrations make exactly the tables of the models."""

from __future__ import annotations

import re
import uuid
from collections import Counter
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
from keyscale.db.errors import SchemaForbiddenError, SchemaIncompleteError, SchemaTooNewError, SchemaUnreleasedError
from keyscale.db.migrate import alembic_config, migrate, refusal_of_unknown_revision
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import BESIDE, OperationKind
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Column, Connection, Table

pytestmark = pytest.mark.real


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


def test_migrating_again_only_adds_the_series_that_are_missing(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE series_points DROP COLUMN restarts, DROP COLUMN busy_ratio"))
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_a_database_of_a_development_version_gets_what_its_revision_gained_later(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0027")
        connection.execute(text("ALTER TABLE jobs DROP COLUMN time_reset_after"))
        connection.execute(text("DROP TABLE secret_labels"))
        connection.execute(text("DROP INDEX ix_events_kind, ix_events_actor, ix_events_not_refused"))
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_a_database_without_a_table_or_column_of_its_revision_is_refused(
    postgres_server: str, migrated_template: str
) -> None:
    engine = open_engine(create_database(postgres_server, f"test_{uuid.uuid4().hex}", migrated_template))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs DROP COLUMN labels"))
        connection.execute(text("ALTER TABLE operations DROP COLUMN kind"))
        connection.execute(text("DROP TABLE heartbeats, series_points"))
    with pytest.raises(
        SchemaIncompleteError, match=r"lacks heartbeats, jobs\.labels, operations\.kind, series_points$"
    ):
        migrate(engine)
    engine.dispose()


def test_a_user_who_may_not_change_the_tables_is_told_so(postgres_server: str, migrated_template: str) -> None:
    engine = open_engine(create_database(postgres_server, f"test_{uuid.uuid4().hex}", migrated_template))
    with engine.begin() as connection:
        connection.execute(text("REVOKE ALL ON alembic_version FROM CURRENT_USER"))
    with pytest.raises(SchemaForbiddenError, match="permission denied for table alembic_version"):
        migrate(engine)
    engine.dispose()


def allow_kinds(connection: Connection, kinds: list[str]) -> None:
    connection.execute(text("ALTER TABLE operations DROP CONSTRAINT ck_operations_kind"))
    check = f"ALTER TABLE operations ADD CONSTRAINT ck_operations_kind CHECK (kind IN {tuple(map(str, kinds))})"
    connection.execute(text(check))


def test_migrating_again_admits_the_members_that_a_version_adds(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.begin() as connection:
        before = inspect(connection).get_check_constraints("operations")
        allow_kinds(connection, ["START", "STOP"])
    migrate(engine)
    with engine.connect() as connection:
        assert inspect(connection).get_check_constraints("operations") == before
    engine.dispose()


def test_a_database_with_members_of_a_newer_version_is_refused(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.begin() as connection:
        allow_kinds(connection, [*OperationKind, "MOVE"])
    with pytest.raises(SchemaTooNewError, match=r"operations\.kind .*MOVE"):
        migrate(engine)
    engine.dispose()


def test_the_index_of_one_running_operation_leaves_out_the_kinds_that_run_beside_others(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.connect() as connection:
        index = connection.scalar(text("SELECT indexdef FROM pg_indexes WHERE indexname = 'uq_operations_one_running'"))
    assert set(re.findall(r"'([A-Z_]+)'", index)) - {"IN_PROGRESS"} == set(BESIDE)
    engine.dispose()


def test_each_migration_keeps_the_rows_of_every_table(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    config = alembic_config()
    for revision in REVISIONS:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            kept = row_counts(connection)
            command.upgrade(config, revision)
            names = RENAMED.get(revision, {})
            expected: Counter[str] = Counter()
            for table, count in kept.items():
                expected[names.get(table, table)] += count
            assert row_counts(connection).items() >= expected.items(), f"{revision} loses rows"
            fill_tables(connection)
            assert min(row_counts(connection).values()) > 0
    engine.dispose()


CHECKPOINTS = {
    "interval_ms": 10_000,
    "min_pause_ms": 0,
    "timeout_ms": 600_000,
    "retained_count": 3,
    "tolerable_failed_checkpoints": 10,
    "store_outage_max_ms": 300_000,
}
"""The defaults when specifications became one value."""
REVISIONS = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]
RENAMED = {
    "0025_revisions": {"rescales": "changes"},
    "0031": {"changes": "operations", "commands": "operations"},
}


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
    is_given = column.server_default is not None or column.identity is not None or column.computed is not None
    return not column.nullable and not is_given


def value_of(connection: Connection, table: Table, column: Column[Any]) -> Any:
    for key in column.foreign_keys:
        return connection.scalar(select(key.column).limit(1))
    for check in inspect(connection).get_check_constraints(table.name):
        if f"({column.name})::" in check["sqltext"] or f"{column.name}::" in check["sqltext"]:
            allowed = re.search(r"'([A-Z_]+)'", check["sqltext"])
            assert allowed
            return allowed[1]
    if column.name == "spec":
        return {"artifact_id": connection.scalar(text("SELECT id FROM artifacts LIMIT 1")), "libraries": []}
    if isinstance(column.type, JSONB):
        return {}
    if isinstance(column.type, LargeBinary):
        return b"x"
    return {bool: False, int: 1}.get(column.type.python_type, table.name)  # ids differ from table to table


def test_a_database_of_a_newer_version_is_refused(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaTooNewError, match="9999"):
        migrate(engine)
    engine.dispose()


def test_the_last_revision_of_development_versions_is_known() -> None:
    assert "0026" in REVISIONS


def test_a_database_of_an_earlier_development_version_is_refused_with_the_way_out(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0003'"))
    with pytest.raises(SchemaUnreleasedError, match="0003") as refused:
        migrate(engine)
    assert "db/migrations/versions/<revision>_*" in refused.value.advice
    engine.dispose()


@pytest.mark.parametrize(
    ("revision", "refusal"),
    [
        ("0003", SchemaUnreleasedError),
        ("0025", SchemaUnreleasedError),
        ("0027", SchemaTooNewError),
        ("9999", SchemaTooNewError),
        ("9f3a", SchemaTooNewError),
    ],
)
def test_only_revisions_between_0_1_0_and_the_joined_ones_are_those_of_development(
    revision: str, refusal: type[Exception]
) -> None:
    assert type(refusal_of_unknown_revision(revision)) is refusal


@contextmanager
def migrated_from_0_1_0(
    postgres_url: str, fill: Callable[[Connection], None], revision: str = "0002"
) -> Iterator[Connection]:
    """Yields a connection to a database that 0.1.0, or another revision, has filled and this version has migrated."""
    engine = open_engine(postgres_url)
    config = alembic_config()
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            insert(connection, "artifacts", id="a", kind="PYTHON")
            fill(connection)
        migrate(engine)
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def insert(connection: Connection, table: str, **values: Any) -> None:
    """Inserts a row with these values, and any in the other columns that need one."""
    found = MetaData()
    found.reflect(connection, only=[table])
    columns = [column for column in found.tables[table].columns if needs_value(column) and column.name not in values]
    others = {column.name: value_of(connection, found.tables[table], column) for column in columns}
    connection.execute(found.tables[table].insert().values({**others, **values}))


def rows(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(text(query))]


def test_a_job_of_0_1_0_becomes_its_first_revision_and_gets_all_secrets(postgres_url: str) -> None:
    def fill(connection: Connection) -> None:
        specification = {"parameters": {"p": "1"}, "spark_conf": {"s": "2"}, "checkpoints": {"interval_ms": 1000}}
        insert(connection, "jobs", id="j", artifact_id="a", parallelism=3, created_at_ms=5, **specification)

    with migrated_from_0_1_0(postgres_url, fill) as connection:
        checkpoints = {**CHECKPOINTS, "interval_ms": 1000}
        spec = {
            "artifact_id": "a",
            "libraries": [],
            "parallelism": 3,
            "max_parallelism": 1,
            "hash_id": "jobs",
            "parameters": {"p": "1"},
            "secrets": None,
            "spark_conf": {"s": "2"},
            "checkpoints": checkpoints,
            "restart": None,
            "batch_interval_ms": None,
        }
        found = rows(connection, "SELECT number, spec, artifact_id, libraries, created_at_ms FROM revisions")
        assert found == [(1, spec, "a", [], 5)]
        known = {**spec, "hash_id": "spark"}
        assert JobSpec.model_validate(known).given().items() >= known.items()
        kept = "SELECT revision, labels, skip_lost_records, user_number FROM jobs"
        assert rows(connection, kept) == [(1, {}, False, 1)]


def test_numbers_of_0_1_0_above_the_bounds_are_lowered(postgres_url: str) -> None:
    restart = {"type": "fixed-delay", "delay_ms": 10**19, "attempts": 2}
    checkpoints = {"interval_ms": 1000, "retained": 10**9, "incremental": True}

    def fill(connection: Connection) -> None:
        insert(connection, "jobs", id="j", artifact_id="a", restart=restart, checkpoints=checkpoints)

    with migrated_from_0_1_0(postgres_url, fill) as connection:
        assert rows(connection, "SELECT spec -> 'restart', spec -> 'checkpoints' FROM revisions") == [
            (
                {**restart, "delay_ms": 31_536_000_000},
                {**CHECKPOINTS, **checkpoints, "retained": 1_000_000},
            )
        ]


@pytest.mark.parametrize(("parallelism", "revision"), [(2, 1), (4, 2)], ids=["before the stop", "after the stop"])
def test_a_rescale_that_0_1_0_left_in_progress_leads_from_one_revision_to_another(
    postgres_url: str, parallelism: int, revision: int
) -> None:
    def fill(connection: Connection) -> None:
        insert(connection, "jobs", id="j", artifact_id="a", parallelism=parallelism, status="RESCALING")
        for number, size, stage in ((1, 2, "ENDED"), (2, 4, "ENDED"), (3, 2, "ACTIVE")):
            insert(connection, "attempts", job_id="j", number=number, parallelism=size, stage=stage)
        rescale = {"job_id": "j", "from_parallelism": 2, "to_parallelism": 4, "old_attempt": 1}
        insert(connection, "rescales", id="r", status="IN_PROGRESS", requested_at_ms=7, **rescale)
        insert(connection, "rescales", id="q", status="COMPLETED", **rescale)

    with migrated_from_0_1_0(postgres_url, fill) as connection:
        assert rows(connection, "SELECT revision FROM jobs") == [(revision,)]
        assert rows(connection, "SELECT number, (spec -> 'parallelism')::int FROM revisions ORDER BY number") == [
            (1, 2),
            (2, 4),
        ]
        assert rows(connection, "SELECT number, revision FROM attempts ORDER BY number") == [(1, 1), (2, 2), (3, 1)]
        changes = "SELECT id, kind, upgrade_mode, from_revision, to_revision FROM operations ORDER BY id"
        assert rows(connection, changes) == [("q", "RESCALE", "SAVEPOINT", 1, 1), ("r", "RESCALE", "SAVEPOINT", 1, 2)]


def test_changes_and_commands_become_operations_with_their_ids(postgres_url: str) -> None:
    def fill(connection: Connection) -> None:
        for job, status, desired, stop in (
            ("r", "RESCALING", "RUNNING", None),
            ("s", "SAVEPOINTING", "STOPPED", "stop"),
            ("t", "STOPPED", "STOPPED", "stopped"),
        ):
            insert(connection, "jobs", id=job, name=job, status=status, desired=desired, stop_operation_id=stop)
        for change, job, kind, status, code in (
            ("c1", "r", "RESCALE", "IN_PROGRESS", None),
            ("c2", "t", "UPGRADE", "ROLLED_BACK", "CHANGE_CANCELLED"),
            ("c3", "t", "UPGRADE", "ROLLED_BACK", "JOB_FUNCTION_FAILED"),
        ):
            failure = None if code is None else {"code": code}
            insert(connection, "changes", id=change, job_id=job, kind=kind, status=status, failure=failure)
        for command_id, job, kind, status, drain in (
            ("rescale:c1", "r", "STOP_WITH_SAVEPOINT", "IN_PROGRESS", False),
            ("sp", "r", "SAVEPOINT", "IN_PROGRESS", False),
            ("stop", "s", "STOP_WITH_SAVEPOINT", "COMPLETED", True),  # its job has not ended yet
            ("stopped", "t", "STOP_WITH_SAVEPOINT", "COMPLETED", False),
        ):
            insert(connection, "commands", id=command_id, job_id=job, kind=kind, status=status, drain=drain)

    with migrated_from_0_1_0(postgres_url, fill, "0030") as connection:
        found = rows(connection, "SELECT id, job_id, kind, status, command_status FROM operations ORDER BY id")
        assert found == [
            ("c1", "r", "RESCALE", "IN_PROGRESS", "IN_PROGRESS"),
            ("c2", "t", "UPGRADE", "CANCELLED", None),
            ("c3", "t", "UPGRADE", "ROLLED_BACK", None),
            ("sp", "r", "SAVEPOINT", "IN_PROGRESS", "IN_PROGRESS"),
            ("stop", "s", "DRAIN", "IN_PROGRESS", "COMPLETED"),
            ("stopped", "t", "STOP", "COMPLETED", "COMPLETED"),
        ]
        assert rows(connection, "SELECT id, failure ->> 'code' FROM operations WHERE failure ? 'code'") == [
            ("c3", "JOB_FUNCTION_FAILED")
        ]


def test_the_last_heartbeat_of_an_attempt_of_0_1_0_is_kept(postgres_url: str) -> None:
    def fill(connection: Connection) -> None:
        insert(connection, "jobs", id="j", artifact_id="a")
        heard = {"heartbeat_at_ms": 8, "last_commit_batch_id": 6, "last_commit_at_ms": 7, "metrics": {"m": 1}}
        insert(connection, "attempts", job_id="j", number=1, stage="ENDED", **heard)
        insert(connection, "attempts", job_id="j", number=2, stage="ACTIVE")

    with migrated_from_0_1_0(postgres_url, fill) as connection:
        kept = "SELECT attempt, at_ms, last_commit_batch_id, last_commit_at_ms, metrics FROM heartbeats"
        assert rows(connection, kept) == [(1, 8, 6, 7, {"m": 1})]


def test_tokens_of_0_1_0_reach_every_job_and_do_not_expire(postgres_url: str) -> None:
    def fill(connection: Connection) -> None:
        for role in ("VIEWER", "ADMIN"):
            insert(connection, "tokens", sha256=role, name=role, role=role)

    with migrated_from_0_1_0(postgres_url, fill) as connection:
        scopes = "SELECT role, job_names, job_labels, expires_at_ms, created_by FROM tokens ORDER BY role"
        assert rows(connection, scopes) == [("ADMIN", [], {}, None, "system"), ("VIEWER", [], {}, None, "system")]
        assert rows(connection, "SELECT count(DISTINCT id), min(length(id)) FROM tokens") == [(2, 32)]
