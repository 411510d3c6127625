"""A migrated database that many tests use one after the other."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.sql import SQL, Composable, Identifier, Literal

from keyscale.db.connections import open_engine
from keyscale.db.models import Job

_TABLES = list(reversed(Job.metadata.sorted_tables))


class ReusedDatabase:
    """A migrated database and one pool of connections to it.

    A database of its own for each test would take a tenth of a second, and so would its connections and the statements
    that each pool compiles again.

    Args:
        url: A new, migrated database.

    Attributes:
        engine: The pool. An application that ends leaves the pool open.
    """

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self._close_pool = self.engine.dispose
        self.engine.dispose = _stay_open  # type: ignore[method-assign]
        self._own = psycopg.connect(url, autocommit=True, options="-c lock_timeout=20s")
        self._renewal = SQL("").join(self._renewing_statements())

    def renew(self) -> None:
        """Makes the tables hold what they held after the migrations, and counters begin at 1 again."""
        self._own.execute(self._renewal)

    def close(self) -> None:
        self._own.close()
        self._close_pool()

    def _renewing_statements(self) -> list[Composable]:
        statements: list[Composable] = [SQL("DELETE FROM {};").format(Identifier(table.name)) for table in _TABLES]
        for table in reversed(_TABLES):
            for row in self._own.execute(SQL("SELECT * FROM {}").format(Identifier(table.name))):
                values = SQL(", ").join(map(Literal, row))
                statements.append(SQL("INSERT INTO {} VALUES ({});").format(Identifier(table.name), values))
        for (name,) in self._own.execute("SELECT sequencename FROM pg_sequences"):
            statements.append(SQL("SELECT setval({}, 1, false);").format(name))
        return statements


def _stay_open(*_: Any, **__: Any) -> None:
    """Takes the place of the pool's end."""
