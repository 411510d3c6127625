"""A real PostgreSQL for tests: the embedded one, in a directory of its own."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from keyscale.db.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running_postgres() -> Iterator[EmbeddedPostgres]:
    """Starts a PostgreSQL on a fresh directory; yields the server; stops it and deletes its data afterwards."""
    # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
    with tempfile.TemporaryDirectory(prefix="keyscale-pg-", ignore_cleanup_errors=True) as directory:
        server = EmbeddedPostgres(Path(directory) / "postgres")
        server.start()
        try:
            yield server
        finally:
            server.stop()


def create_database(server_url: str, name: str, template: str = "template1") -> str:
    """Creates a copy of a database, which is empty by default, on the server at `server_url`; returns its URL."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    base, _, options = server_url.partition("?")
    return f"{base.rpartition('/')[0]}/{name}?{options}"
