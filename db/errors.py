"""Errors of the database layer, with the attributes that every Keyscale error has."""

from __future__ import annotations

from typing import ClassVar, Literal

Domain = Literal["user", "external", "internal"]


class DatabaseError(Exception):
    """Root of the errors of `db`."""

    code: ClassVar[str] = "DATABASE_ERROR"
    title: ClassVar[str] = "The database cannot be used"
    domain: ClassVar[Domain] = "external"
    retryable: ClassVar[bool] = False
    advice: ClassVar[str] = "Look at the message and at PostgreSQL's log."


class EmbeddedPostgresError(DatabaseError):
    """The embedded PostgreSQL could not be started or stopped."""

    code = "EMBEDDED_POSTGRES_FAILED"
    title = "The embedded PostgreSQL cannot be started"
    advice = (
        "Read <home>/postgres/log. The usual causes are a full disk, a home directory that is not on a local disk, or "
        "one that the database's user may not pass through. Or set KEYSCALE_DATABASE_URL to a PostgreSQL of your own."
    )


class SchemaTooNewError(DatabaseError):
    """The database was migrated by a newer version of Keyscale than this one."""

    code = "DATABASE_SCHEMA_TOO_NEW"
    title = "The database belongs to a newer version of Keyscale"
    domain = "user"
    advice = "Start the version of Keyscale that migrated this database, or a newer one."
