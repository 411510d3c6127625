"""Fixtures shared by all tests. Expensive real things (PostgreSQL, Spark) are started once a session."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from keyscale.installation import IMPORT_PATH
from tests.support.repository import ROOT
from tests.support.servers.postgres import create_database, temporary_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.drivers.driver_process import DriverProcess
    from tests.support.servers.kafka_broker import Broker

# Processes that tests start import the same `keyscale`; Spark's Python workers also what tests send them from
# tests.support.
os.environ["PYTHONPATH"] = os.pathsep.join((str(IMPORT_PATH), str(ROOT)))

# Java processes of tests end before the second compiler's code would pay for its making. Control planes pass this on.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# No limit of time, as the machine may be busy; and examples that a failure prints to be run again.
settings.register_profile("keyscale", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("keyscale")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a real PostgreSQL server that lives as long as the test session."""
    with temporary_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """URL of a fresh, empty database of the session's server."""
    return create_database(postgres_server, f"test_{uuid.uuid4().hex}")


@pytest.fixture
def control_plane() -> Iterator[RunningControlPlane]:
    """A real control plane on a home of its own, with the embedded PostgreSQL and a local store."""
    from tests.support.control_plane.running_control_plane import running_control_plane  # noqa: PLC0415 - most tests need none

    with running_control_plane() as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session in the test's own process, for tests of single batches and of column expressions."""
    from tests.support.spark.spark_session import start_spark  # noqa: PLC0415 - most tests need no Spark

    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def drivers() -> Iterator[list[DriverProcess]]:
    """The drivers that a test starts, to be appended by it; none outlives it."""
    started: list[DriverProcess] = []
    yield started
    for driver in started:
        driver.end()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """A real Kafka broker that lives as long as the test session."""
    from tests.support.servers.kafka_broker import running_broker  # noqa: PLC0415 - most tests need none

    with running_broker() as broker:
        yield broker
