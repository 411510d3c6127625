"""A control plane's HTTP side in this process, on a migrated PostgreSQL. Nothing is reconciled.

Tests of connections serve the application on a socket.
"""

from __future__ import annotations

import socket
import threading
import uuid
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from anyio.from_thread import start_blocking_portal
from sqlalchemy import text

from keyscale.api.access.tokens import token_sha256
from keyscale.api.artifacts import artifacts
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.libraries.artifact_inspection import inspect_artifact
from keyscale.api.lifecycle.leadership import Leadership
from keyscale.api.recovery import recovered_jobs
from keyscale.api.settings import Settings
from keyscale.api.web.app import create_app, make_context
from keyscale.db.connections import open_engine, session_factory
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories import leaders, tokens
from keyscale.vocabulary import Role
from tests.support.control_plane.driverless_platform import driverless_platform
from tests.support.control_plane.reused_database import ReusedDatabase
from tests.support.control_plane.running_application import RunningApplication, running_application
from tests.support.servers.memory_database import MemoryDatabase
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anyio.from_thread import BlockingPortal
    from fastapi import FastAPI
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session
    from starlette.routing import BaseRoute

    from keyscale.api.control_plane.context import Context
    from keyscale.db.models import Token
    from tests.support.control_plane.driverless_platform import Platform

TOKEN = "the-admin-token"  # noqa: S105 - a test's own
REQUEST_SECONDS = 60.0  # uploads are synced to a disk that other tests share


def rows_read(session: Session, table: str) -> int:
    """How many rows of a table a transaction has read."""
    read = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
    return session.execute(text(f"{read} WHERE relname = :table"), {"table": table}).scalar_one()


def add_token(
    session: Session, value: str, role: Role, scope: JobScope = EVERYTHING, expires_at_ms: int | None = None
) -> Token:
    return tokens.add(
        session,
        token_id=uuid.uuid4().hex,
        sha256=token_sha256(value),
        name=value.removeprefix("the-").removesuffix("-token"),
        role=role,
        scope=scope,
        at_ms=0,
        expires_at_ms=expires_at_ms,
        created_by="system",
    )


class ReplacedSoon(Leadership):
    """A leader that another replica replaces right after its first transaction."""

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with super().transaction() as session:
            yield session
        with self._sessions.begin() as session:
            leaders.begin_epoch(session, "http://second:1")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path,
        store_url=(tmp_path / "store").as_uri(),
        artifact_bytes_max=1 << 20,
        job_secrets=JobSecrets({"KEYSCALE_JOB_SECRET_ORDERS": "of-the-orders"}),
        failures_per_minute=0,  # most tests of refusals send many
    )


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str, migrated_template: str) -> Iterator[ReusedDatabase]:
    """The database that the real tests of this process use one after the other."""
    database = ReusedDatabase(create_database(postgres_server, f"api_{uuid.uuid4().hex}", migrated_template))
    yield database
    database.close()


@pytest.fixture(scope="session")
def memory_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryDatabase]:
    """The database that the fast tests of this process use one after the other."""
    database = MemoryDatabase(tmp_path_factory.mktemp("database") / "database")
    yield database
    database.close()


@pytest.fixture
def database(request: pytest.FixtureRequest, database_kind: str) -> ReusedDatabase | MemoryDatabase:
    """The database of a test, of its kind. Both stay open, as the tests of a file use one and then the other."""
    found: ReusedDatabase | MemoryDatabase = request.getfixturevalue(f"{database_kind}_database")
    return found


@pytest.fixture
def engine(database: ReusedDatabase | MemoryDatabase) -> Engine:
    """A migrated database without jobs, tokens and anything else of tests."""
    database.renew()
    return database.engine


@pytest.fixture
def new_engine(postgres_server: str, migrated_template: str) -> Iterator[Engine]:
    """A migrated database of the test's own, for tests of connections and statistics."""
    engine = open_engine(create_database(postgres_server, f"test_{uuid.uuid4().hex}", migrated_template))
    yield engine
    engine.dispose()


@pytest.fixture
def context(settings: Settings, engine: Engine) -> Context:
    with session_factory(engine).begin() as session:
        add_token(session, TOKEN, Role.ADMIN)
    return make_context(settings, engine)


@pytest.fixture
def leadership(context: Context) -> Leadership:
    """The right to write of a leader that nobody has replaced."""
    with context.sessions.begin() as session:
        return Leadership(context.sessions, leaders.begin_epoch(session, "http://first:1"))


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """The event loop in which the applications of this process answer."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def routes() -> list[BaseRoute]:
    """The routes of the first application, for all of them: each route is built at its first request."""
    return []


@pytest.fixture
def app(context: Context, routes: list[BaseRoute]) -> FastAPI:
    app = create_app(context, reconcile=False)
    routes[:] = routes or app.router.routes
    app.router.routes = list(routes)
    return app


@pytest.fixture
def application(app: FastAPI, portal: BlockingPortal) -> Iterator[RunningApplication]:
    with running_application(app, portal) as application:
        yield application


@contextmanager
def served(app: FastAPI, listener: socket.socket | None = None) -> Iterator[httpx.Client]:
    """Serves an application on a socket, of its own unless one is given; yields a client without a token."""
    listener = listener or new_listener()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with listener, httpx.Client(base_url=url, timeout=REQUEST_SECONDS, trust_env=False) as client:
        yield client
        server.should_exit = True
        thread.join()


def new_listener() -> socket.socket:
    # With the protocol given, as the control plane does it: asyncio then sends small answers at once (TCP_NODELAY).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@pytest.fixture
def on_socket() -> None:
    """Lets the client of a test talk to the application over a socket; for `usefixtures`."""


@pytest.fixture
def anonymous(request: pytest.FixtureRequest, app: FastAPI) -> Iterator[httpx.Client]:
    """A client without a token."""
    if "on_socket" in request.fixturenames:
        with served(app) as client:
            yield client
    else:
        application: RunningApplication = request.getfixturevalue("application")
        with application.new_client() as client:
            yield client


@pytest.fixture
def client(anonymous: httpx.Client) -> httpx.Client:
    """A client with the admin's token."""
    anonymous.headers["Authorization"] = f"Bearer {TOKEN}"
    return anonymous


@pytest.fixture(scope="session")
def inspections() -> dict[tuple[bytes, str], Any]:
    """What is in the files that were uploaded: a process inspects each file, and most tests upload the same one."""
    return {}


@pytest.fixture(autouse=True)
def _inspected_once(inspections: dict[tuple[bytes, str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect(content: IO[bytes], filename: str) -> Any:
        content.seek(0)
        key = content.read(), filename
        if key not in inspections:
            inspections[key] = inspect_artifact(content, filename)
        return inspections[key]

    for service in (artifacts, recovered_jobs):
        monkeypatch.setattr(service, "inspect_artifact", inspect)


@pytest.fixture(scope="module")
def platform(
    postgres_server: str, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """A control plane without drivers, on a socket, that the tests of a module share."""
    home = tmp_path_factory.mktemp("home")
    database = create_database(postgres_server, f"platform_{uuid.uuid4().hex}", migrated_template)
    with driverless_platform(Settings(home=home, database_url=database, store_url=(home / "store").as_uri())) as shared:
        yield shared


@pytest.fixture
def upload(client: httpx.Client) -> Callable[..., Any]:
    """Uploads a file and returns the answer."""

    def send(content: bytes = b"print(1)\n", filename: str = "job.py", **fields: str) -> Any:
        return client.post("/v1/artifacts", files={"file": (filename, content)}, data=fields)

    return send


@pytest.fixture
def job(client: httpx.Client, upload: Callable[..., Any]) -> dict[str, Any]:
    """A created job, of parallelism 2 and max parallelism 16."""
    body = {"name": "flights", "spec": {"artifact_id": upload().json()["id"], "parallelism": 2, "max_parallelism": 16}}
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created
