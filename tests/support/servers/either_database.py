"""A module's own database of either kind."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyscale.db.connections import open_engine
from tests.suite.database_kinds import MEMORY
from tests.support.servers.memory_database import memory_engine
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from sqlalchemy import Engine


@contextmanager
def either_engine(request: pytest.FixtureRequest, kind: str) -> Iterator[Engine]:
    """Creates a database of a kind; yields its connections, and closes them afterwards."""
    if kind == MEMORY:
        engine = memory_engine()
    else:
        server, template = map(request.getfixturevalue, ("postgres_server", "migrated_template"))
        engine = open_engine(create_database(server, f"either_{uuid.uuid4().hex}", template))
    yield engine
    engine.dispose()
