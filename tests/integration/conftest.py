"""The two databases of a module, for tests with the mark `either_database`."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from keyscale.db.connections import open_engine
from tests.support.servers import memory_database
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module")
def postgres_engine(postgres_server: str, migrated_template: str) -> Iterator[Engine]:
    engine = open_engine(create_database(postgres_server, f"module_{uuid.uuid4().hex}", migrated_template))
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def memory_engine() -> Iterator[Engine]:
    engine = memory_database.memory_engine()
    yield engine
    engine.dispose()
