"""The tiers of the tests, and fixtures that all tests share. PostgreSQL is started once a run, Spark once a process."""

from __future__ import annotations

import gc
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from keyscale.installation import IMPORT_PATH
from tests.property.histories import EXAMPLES
from tests.suite import database_kinds
from tests.suite.imports import import_in_turns
from tests.suite.reaper import continue_below_reaper, is_program
from tests.suite.scratch import use_memory
from tests.suite.tiers import arrange
from tests.support.repository import ROOT
from tests.support.servers.postgres import create_database
from tests.support.servers.shared_postgres import SharedPostgres

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.drivers.driver_process import DriverProcess
    from tests.support.servers.kafka_broker import Broker

# Processes that tests start import the same `keyscale`; Spark's Python workers also what tests send them from
# tests.support.
os.environ["PYTHONPATH"] = os.pathsep.join((str(IMPORT_PATH), str(ROOT)))

# Java processes of tests end before the second compiler's code would pay for its making. Control planes pass this on.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# No limit of time, as the machine may be busy; and examples that a failure prints to be run again.
settings.register_profile(
    "keyscale",
    deadline=None,
    max_examples=8 * EXAMPLES,  # a single call is shorter than a history
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("keyscale")


POSTGRES = pytest.StashKey[SharedPostgres]()


def pytest_cmdline_main(config: pytest.Config) -> None:
    if is_program() and not is_worker(config):
        continue_below_reaper()


def pytest_configure(config: pytest.Config) -> None:
    directory = getattr(config, "workerinput", {}).get("postgres")
    config.stash[POSTGRES] = SharedPostgres(Path(directory)) if directory else SharedPostgres.in_new_directory()
    if "not exhaustive" in config.option.markexpr:
        use_memory()


def pytest_configure_node(node: WorkerController) -> None:
    """Gives each worker of pytest-xdist the one database server of the run."""
    node.workerinput["postgres"] = str(node.config.stash[POSTGRES].directory)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not is_worker(config):
        config.stash[POSTGRES].stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Spares the garbage collection what is collected: it all stays, and would be walked through again and again."""
    gc.disable()
    try:
        if given := getattr(session.config, "workerinput", None):
            import_in_turns(session.config.args, int(given["workerid"].removeprefix("gw")), given["workercount"])
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    arrange(items)
    yield  # pytest chooses tests by their marks
    ids = database_kinds.superseded(items)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in ids])
    items[:] = [item for item in items if item.nodeid not in ids]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    database_kinds.parametrize(metafunc)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several that pytest-xdist has started."""
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> str:
    """URL of the run's PostgreSQL server, which the first test that needs it starts."""
    return pytestconfig.stash[POSTGRES].url()


@pytest.fixture(scope="session")
def migrated_template(pytestconfig: pytest.Config) -> str:
    """The name of a migrated database of the run's server, to be copied."""
    return pytestconfig.stash[POSTGRES].migrated()


@pytest.fixture
def database_kind() -> str:
    """Which database a test has: PostgreSQL, unless its mark `either_database` gives it one in memory."""
    return database_kinds.POSTGRES


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
