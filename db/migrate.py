"""Migrates a database to the schema of this version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Enum, inspect, text
from sqlalchemy.exc import ProgrammingError

from .base import Base
from .connections import without_time_limits
from .errors import SchemaForbiddenError, SchemaIncompleteError, SchemaTooNewError, SchemaUnreleasedError
from .models import SeriesPoint

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_MIGRATION_LOCK = 0x6B657973  # "keys", as in `PostgresSink`: replicas migrate one after another
_MEMBER = re.compile(r"'(\w+)'")  # in a check, as PostgreSQL writes it

_LAST_JOINED_REVISION = 26  # development versions had 0003 to 0026, which three migrations replace


def alembic_config() -> Config:
    """Returns Alembic's configuration, without an alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.set_main_option("path_separator", "os")
    return config


def migrate(engine: Engine) -> None:
    """Runs the outstanding migrations in one transaction.

    Raises:
        SchemaTooNewError: A newer version of Keyscale has migrated the database, or added members to closed sets.
        SchemaUnreleasedError: A development version has, to a revision that no release has.
        SchemaIncompleteError: The database lacks a table or a column.
        SchemaForbiddenError: The user may not change the tables.
    """
    try:
        _migrate(engine)
    except ProgrammingError as failure:
        if isinstance(failure.orig, InsufficientPrivilege):
            raise SchemaForbiddenError(str(failure.orig)) from None
        raise


def _migrate(engine: Engine) -> None:
    config = alembic_config()
    scripts = ScriptDirectory.from_config(config)
    with engine.begin() as connection, without_time_limits(connection):
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        current = MigrationContext.configure(connection).get_current_revision()
        known = {script.revision for script in scripts.walk_revisions()}
        if current is not None and current not in known:
            raise refusal_of_unknown_revision(current)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        _add_series_or_refuse(connection)
        _admit_members(connection)


def _add_series_or_refuse(connection: Connection) -> None:
    """Adds the columns of new metrics, and refuses other gaps.

    An empty column costs nothing.
    """
    stored = {
        table: {column["name"] for column in columns}
        for (_, table), columns in inspect(connection).get_multi_columns().items()
    }
    missing = []
    for table in Base.metadata.sorted_tables:
        if table.name not in stored:
            missing.append(table.name)
            continue
        for column in table.columns:
            if column.name in stored[table.name]:
                continue
            if table.name == SeriesPoint.__tablename__:
                kind = column.type.compile(connection.dialect)
                connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))
            else:
                missing.append(f"{table.name}.{column.name}")
    if missing:
        raise SchemaIncompleteError(f"the database lacks {', '.join(sorted(missing))}")


def _admit_members(connection: Connection) -> None:
    """Widens the checks of closed sets by this version's new members.

    A member that only the check knows is of a newer version, whose rows this version cannot read.
    """
    checks = inspect(connection).get_multi_check_constraints()
    stored = {check["name"]: set(_MEMBER.findall(check["sqltext"])) for found in checks.values() for check in found}
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if not isinstance(column.type, Enum):
                continue
            name, members = f"ck_{table.name}_{column.type.name}", column.type.enums
            if unknown := stored.get(name, set()).difference(members):
                raise SchemaTooNewError(
                    f"{table.name}.{column.name} may be {', '.join(sorted(unknown))}, not known here"
                )
            if stored.get(name) != set(members):
                listed = ", ".join(f"'{member}'" for member in members)
                check = f"CONSTRAINT {name} CHECK ({column.name} IN ({listed}))"
                connection.execute(text(f"ALTER TABLE {table.name} DROP CONSTRAINT IF EXISTS {name}, ADD {check}"))


def refusal_of_unknown_revision(revision: str) -> SchemaTooNewError | SchemaUnreleasedError:
    """Returns the error for a database at an unknown revision."""
    if revision.isdecimal() and int(revision) < _LAST_JOINED_REVISION:
        return SchemaUnreleasedError(f"the database is at revision {revision}, which only development versions had")
    return SchemaTooNewError(f"the database is at revision {revision}, which this version does not know")
