"""Runs the control plane: `python -m keyscale.api.web`."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import uvicorn
from sqlalchemy.exc import OperationalError

from keyscale.clock import now_ms
from keyscale.db.connections import open_engine, session_factory
from keyscale.db.embedded import EmbeddedPostgres, let_enter
from keyscale.db.embedded_keeper import EmbeddedPostgresKeeper
from keyscale.db.errors import DatabaseError
from keyscale.db.job_scope import EVERYTHING
from keyscale.db.migrate import migrate
from keyscale.db.repositories import tokens
from keyscale.log_lines import configure_logging
from keyscale.vocabulary import Role

from ..access.tokens import new_token, token_sha256
from ..database_clock import follow_database_clock
from ..errors import ApiError, SettingInvalidError
from ..launching.driver_command import stays_on_loopback
from ..launching.enclosures import enclosures_here
from ..launching.isolation import isolation_here, make_directory
from ..settings import Settings
from .app import create_app, make_context
from .connections import LimitedHttpProtocol, Listener, raise_open_files
from .request_origin import RequestIdFilter, limit_lines_of_refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastapi import FastAPI
    from sqlalchemy import Engine

    from ..control_plane.context import Context
    from ..launching.enclosures import Enclosures
    from ..launching.isolation import Isolation

logger = logging.getLogger(__name__)

UNREAD_MS_MAX = 120_000
"""How long a client may leave its answer unread, such as an event stream, before its connection is closed."""
_GRACE_S = 5
_KEEP_ALIVE_S = 30  # longer than drivers keep a connection without requests
_ADMIN = "admin"
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Runs until SIGTERM or SIGINT; drivers run on. Returns the exit code."""
    line = "%(asctime)s %(levelname)s %(name)s [%(request_id)s]: %(message)s"
    configure_logging(os.environ, line, RequestIdFilter())
    logging.getLogger("alembic").setLevel(logging.WARNING)
    limit_lines_of_refusals()
    for number in _ENDING_SIGNALS:
        # Everything is shut down in order. The web server has its own handlers while it serves, then calls this
        # handler.
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        return serve(Settings.from_environment())
    except (ApiError, DatabaseError) as error:
        sys.stderr.write(f"keyscale: {error.code}: {error}\n{error.advice}\n")
        return 1
    except OperationalError as error:
        sys.stderr.write(f"keyscale: DATABASE_UNAVAILABLE: {error.orig}\n")
        return 1


def serve(settings: Settings) -> int:
    """Serves; starts and stops the embedded database if needed.

    It is needed if the settings name no other database.
    """
    raise_open_files()
    isolation = prepare_home(settings)
    enclosures = enclosures_here(settings, isolation)
    logger.info("quotas of jobs: %s", enclosures.means.statement)
    embedded = EmbeddedPostgres(settings.home / "postgres") if settings.database_url is None else None
    with alone_in(settings.home), listen(settings) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        keeper = EmbeddedPostgresKeeper(embedded) if embedded is not None else None
        if embedded is not None and keeper is not None:
            embedded.start()
            keeper.start()
        try:
            engine = open_engine(settings.database_url or (embedded.url if embedded else ""))
            migrate(engine)
            token = ensure_admin_token(engine, settings.token_file)
            write_privately(settings.home / "address", settings.control_url)
            sys.stdout.write(f"Keyscale is at {settings.control_url}\nToken: {token} (in {settings.token_file})\n")
            sys.stdout.flush()
            run(settings, engine, listener, isolation, enclosures)
        finally:
            for number in _ENDING_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # the database must be stopped completely
            if embedded is not None and keeper is not None:
                keeper.close()
                embedded.stop()
    return 0


@contextmanager
def alone_in(home: Path) -> Iterator[None]:
    """Keeps a second control plane out of a home.

    At its end the second control plane would stop the first one's database.

    Raises:
        SettingInvalidError: A control plane already runs there.
    """
    with (home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingInvalidError(f"KEYSCALE_HOME: a control plane already runs on {home}") from error
        yield


def prepare_home(settings: Settings) -> Isolation:
    """Makes the control plane's private directories; returns jobs' users.

    Raises:
        SettingInvalidError: The settings demand users of jobs that are not available.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    isolation = isolation_here(settings)
    if isolation.why_not is not None:
        logger.warning("jobs run as the user of the control plane: %s", isolation.why_not)
    if not stays_on_loopback(settings.spark_master) and not settings.spark_secret:
        logger.warning("Spark's processes trust every process on their network: KEYSCALE_SPARK_SECRET is not set")
    is_shared = isolation.count > 0
    make_directory(settings.home, enter=is_shared)
    make_directory(settings.runs_directory, enter=is_shared)
    if settings.store_url == (settings.home / "store").as_uri():
        make_directory(settings.home / "store", enter=is_shared)
    if is_shared:
        let_enter(settings.home)
    return isolation


def run(
    settings: Settings, engine: Engine, listener: socket.socket, isolation: Isolation, enclosures: Enclosures
) -> None:
    """Serves requests until a signal arrives."""
    app = create_app(make_context(settings, engine, isolation, enclosures))
    # All that has been imported and made stays: without this the garbage collection walks through it again and again,
    # which stops all requests for a tenth of a second each time.
    gc.collect()
    gc.freeze()
    # A scrape of 1,000 jobs makes 100,000s of objects, and no cycles: with Python's own thresholds (700, 10, 10) the
    # searches for cycles took two fifths of its processor time.
    gc.set_threshold(20_000, 20, 50)
    _Server(server_config(app, settings), app).run(sockets=[listener])


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Returns how the web server reads requests and ends."""
    return uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
    )


class _Server(uvicorn.Server):
    """Ends streams and waiting requests before it waits for open requests.

    Event streams and the requests of waiting drivers would not end by themselves.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._context: Context = app.state.context

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.change_feed.end_all()
        self._context.calls.end_all()
        await super().shutdown(sockets)


def listen(settings: Settings) -> socket.socket:
    """Returns the socket on which requests arrive.

    Raises:
        SettingInvalidError: The control plane cannot listen on the address.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol given, asyncio sends small answers immediately (TCP_NODELAY). Without it, a client that keeps
    # its connection would wait for up to 40 ms, for its own delayed acknowledgement.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Otherwise a client that stops reading, and lives, keeps its connection and its stream without limit.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS_MAX)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SettingInvalidError(
            f"KEYSCALE_HOST, KEYSCALE_PORT: cannot listen on {settings.host}:{settings.port}: {error.strerror}"
        ) from error
    return listener


def ensure_admin_token(engine: Engine, file: Path) -> str:
    """Returns the admin token of the file; the database has its hash.

    It is made at the first start, and at the first start after its revocation.
    """
    with session_factory(engine).begin() as session:
        follow_database_clock(session)
        token = file.read_text().strip() if file.exists() else ""
        found = tokens.find(session, token_sha256(token)) if token else None
        if not token or (found is not None and found.revoked_at_ms is not None):
            token, found = new_token(), None
            write_privately(file, token)
        if found is None:
            tokens.add(
                session,
                token_id=uuid.uuid4().hex,
                sha256=token_sha256(token),
                name=_ADMIN,
                role=Role.ADMIN,
                scope=EVERYTHING,
                at_ms=now_ms(),
                expires_at_ms=None,
                created_by="system",
            )
    return token


def write_privately(path: Path, text: str) -> None:
    """Writes a file atomically; only its owner can read it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    temporary.replace(path)
