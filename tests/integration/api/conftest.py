"""A control plane's HTTP side, served for real on a migrated PostgreSQL. Nothing is reconciled."""

from __future__ import annotations

import socket
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from keyscale.api.access.tokens import token_sha256
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.lifecycle.leadership import Leadership
from keyscale.api.settings import Settings
from keyscale.api.web.app import create_app, make_context
from keyscale.db.connections import open_engine, session_factory
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories import leaders, tokens
from keyscale.db.statuses import Role
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fastapi import FastAPI
    from sqlalchemy.orm import Session

    from keyscale.api.services.context import Context
    from keyscale.db.models import Token

TOKEN = "the-admin-token"  # noqa: S105 - a test's own
REQUEST_SECONDS = 60.0  # uploads are synced to a disk that other tests share


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


@pytest.fixture
def postgres_url(postgres_server: str, migrated_template: str) -> str:
    """URL of a fresh, migrated database of the session's server."""
    return create_database(postgres_server, f"test_{uuid.uuid4().hex}", migrated_template)


@pytest.fixture
def context(settings: Settings, postgres_url: str) -> Iterator[Context]:
    engine = open_engine(postgres_url)
    with session_factory(engine).begin() as session:
        add_token(session, TOKEN, Role.ADMIN)
    yield make_context(settings, engine)
    engine.dispose()


@pytest.fixture
def leadership(context: Context) -> Leadership:
    """The right to write of a leader that nobody has replaced."""
    with context.sessions.begin() as session:
        return Leadership(context.sessions, leaders.begin_epoch(session, "http://first:1"))


@pytest.fixture
def app(context: Context) -> FastAPI:
    return create_app(context, reconcile=False)


@contextmanager
def served(app: FastAPI, listener: socket.socket | None = None) -> Iterator[httpx.Client]:
    """Serves an application, on a socket of its own unless one is given; yields a client without a token."""
    listener = listener or _listener()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with listener, httpx.Client(base_url=url, timeout=REQUEST_SECONDS, trust_env=False) as client:
        yield client
        server.should_exit = True
        thread.join()


def _listener() -> socket.socket:
    # With the protocol given, as the control plane does it: asyncio then sends small answers at once (TCP_NODELAY).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@pytest.fixture
def anonymous(app: FastAPI) -> Iterator[httpx.Client]:
    """A client without a token."""
    with served(app) as client:
        yield client


@pytest.fixture
def client(anonymous: httpx.Client) -> httpx.Client:
    """A client with the admin's token."""
    anonymous.headers["Authorization"] = f"Bearer {TOKEN}"
    return anonymous


@pytest.fixture
def upload(client: httpx.Client) -> Callable[..., Any]:
    """Uploads a file and returns the answer."""

    def send(content: bytes = b"print(1)\n", filename: str = "job.py", **fields: str) -> Any:
        return client.post("/artifacts", files={"file": (filename, content)}, data=fields)

    return send


@pytest.fixture
def job(client: httpx.Client, upload: Callable[..., Any]) -> dict[str, Any]:
    """A created job, of parallelism 2 and max parallelism 16."""
    body = {"name": "flights", "artifact_id": upload().json()["id"], "parallelism": 2, "max_parallelism": 16}
    answer = client.post("/jobs", json=body)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created
