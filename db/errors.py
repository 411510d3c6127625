"""The errors of the database layer."""

from __future__ import annotations

from typing import ClassVar

from keyscale.errors import Domain, KeyscaleError


class DatabaseError(KeyscaleError):
    """Root of the errors of the database layer."""

    code = "DATABASE_ERROR"
    title: ClassVar[str] = "The database cannot be used"
    domain: ClassVar[Domain] = "external"
    advice = "Read the message and PostgreSQL's log."


class EmbeddedPostgresError(DatabaseError):
    """The embedded PostgreSQL could not be started or stopped."""

    code = "EMBEDDED_POSTGRES_FAILED"
    title = "The embedded PostgreSQL cannot be started"
    advice = (
        "Read <home>/postgres/log. The usual causes are a full disk, or a home directory that is not on a local disk "
        "or that the database's user may not enter. Or set KEYSCALE_DATABASE_URL to a PostgreSQL of your own."
    )


class SchemaTooNewError(DatabaseError):
    """A newer version of Keyscale has migrated the database."""

    code = "DATABASE_SCHEMA_TOO_NEW"
    title = "The database belongs to a newer version of Keyscale"
    domain = "user"
    advice = "Start the version of Keyscale that migrated this database, or a newer one."


class SchemaUnreleasedError(DatabaseError):
    """A development version has migrated the database to an unreleased revision."""

    code = "DATABASE_SCHEMA_UNRELEASED"
    title = "The database belongs to a development version of Keyscale"
    domain = "user"
    advice = (
        "In a clone of the repository, `git log -1 --no-renames --diff-filter=D -- "
        "'db/migrations/versions/<revision>_*'` names a commit. Check out the commit before it, start its control "
        "plane once, then start this version. Or use an empty database."
    )


class SchemaIncompleteError(DatabaseError):
    """The database lacks tables or columns that its revision should have."""

    code = "DATABASE_SCHEMA_INCOMPLETE"
    title = "The database lacks tables or columns"
    domain = "user"
    advice = (
        "Restore a complete backup of the database. Without a backup, start with an empty database, and rebuild the "
        "jobs from the object store with `./keyscale recover`; docs/guide/backup.md says how."
    )


class SchemaForbiddenError(DatabaseError):
    """The database's user may not change its tables."""

    code = "DATABASE_SCHEMA_FORBIDDEN"
    title = "The database's user may not change its tables"
    domain = "user"
    advice = (
        "Set KEYSCALE_DATABASE_URL to the user who owns Keyscale's tables; `\\dt` in psql shows the owner. Or, as a "
        "superuser, run `ALTER TABLE <table> OWNER TO <user>` for each table. A backup restored with "
        "`pg_restore --no-owner` belongs to the user who restores it."
    )
