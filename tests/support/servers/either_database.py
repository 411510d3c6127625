"""The two databases of a test: one in memory in the fast tier, and PostgreSQL in the real one."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from keyscale.db.connections import open_engine
from tests.support.servers.memory_database import memory_engine
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

POSTGRES = pytest.param("postgres", marks=pytest.mark.real)
DATABASES = ["memory", POSTGRES]
"""The parameters of a fixture that uses `either_database`."""
POSTGRES_ALONE = pytest.mark.parametrize("engine", [POSTGRES], indirect=True)
"""Marks a test whose query SQLite does not understand."""


@contextmanager
def either_database(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Creates the database that a fixture's parameter names; closes its connections afterwards."""
    if request.param == "memory":
        engine = memory_engine()
    else:
        server, template = map(request.getfixturevalue, ("postgres_server", "migrated_template"))
        engine = open_engine(create_database(server, f"either_{uuid.uuid4().hex}", template))
    yield engine
    engine.dispose()
