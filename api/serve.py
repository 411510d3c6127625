"""Runs the control plane: `python -m api`."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import uvicorn
from sqlalchemy.exc import OperationalError

from api.app import create_app, make_context
from api.clock import now_ms
from api.errors import ApiError, SettingInvalidError
from api.security import new_token, token_sha256
from api.settings import Settings
from db.embedded import EmbeddedPostgres
from db.engine import open_engine, session_factory
from db.errors import DatabaseError
from db.migrate import migrate
from db.repositories import tokens
from db.statuses import Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine

_GRACE_S = 5
_ADMIN = "admin"
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Runs until SIGTERM or SIGINT; drivers run on. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    for number in _ENDING_SIGNALS:
        # Whatever is going on is unwound in order; the web server has its own handlers while it serves, then hands on to this.
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
    """Starts what the settings leave to us, serves, and stops that again."""
    settings.home.mkdir(parents=True, exist_ok=True)
    embedded = EmbeddedPostgres(settings.home / "postgres") if settings.database_url is None else None
    with alone_in(settings.home), listen(settings) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        if embedded is not None:
            embedded.start()
        try:
            engine = open_engine(settings.database_url or (embedded.url if embedded else ""))
            migrate(engine)
            token = ensure_admin_token(engine, settings.token_file)
            write_privately(settings.home / "address", settings.control_url)
            sys.stdout.write(f"Keyscale is at {settings.control_url}\nToken: {token} (in {settings.token_file})\n")
            sys.stdout.flush()
            run(settings, engine, listener)
        finally:
            for number in _ENDING_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # the database is to be stopped whole
            if embedded is not None:
                embedded.stop()
    return 0


@contextmanager
def alone_in(home: Path) -> Iterator[None]:
    """Keeps a second control plane out of a home: when it stopped, it would stop the first one's database.

    Raises:
        SettingInvalidError: There is one.
    """
    with (home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingInvalidError(f"KEYSCALE_HOME: a control plane runs on {home} already") from error
        yield


def run(settings: Settings, engine: Engine, listener: socket.socket) -> None:
    """Serves requests until a signal comes."""
    app = create_app(make_context(settings, engine))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


def listen(settings: Settings) -> socket.socket:
    """Returns the socket that requests come in by.

    Raises:
        SettingInvalidError: The address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SettingInvalidError(
            f"KEYSCALE_HOST, KEYSCALE_PORT: cannot listen on {settings.host}:{settings.port}: {error.strerror}"
        ) from error
    return listener


def ensure_admin_token(engine: Engine, file: Path) -> str:
    """Returns the admin token of the file, made at the first start; the database has its hash."""
    token = file.read_text().strip() if file.exists() else ""
    if not token:
        token = new_token()
        write_privately(file, token)
    digest = token_sha256(token)
    with session_factory(engine).begin() as session:
        if tokens.find(session, digest) is None:
            tokens.add(session, sha256=digest, name=_ADMIN, role=Role.ADMIN, at_ms=now_ms())
    return token


def write_privately(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, as a whole."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    temporary.replace(path)
