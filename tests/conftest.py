"""Fixtures shared by all tests. Expensive real things (PostgreSQL, Spark) are started once a session."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import create_database, temporary_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a real PostgreSQL server that lives as long as the test session."""
    with temporary_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """URL of a fresh, empty database of the session's server."""
    return create_database(postgres_server, f"test_{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session in the test's own process, for tests of single batches and of column expressions."""
    from tests.support.spark_session import start_spark  # noqa: PLC0415 - most tests need no Spark

    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
