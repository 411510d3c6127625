"""Connections to PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session, sessionmaker

if TYPE_CHECKING:
    from sqlalchemy import Engine

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 30_000


def open_engine(url: str) -> Engine:
    """Returns a pool of connections that gives up rather than hangs, so that an absent database is noticed.

    Args:
        url: `postgresql://...`, as libpq takes it or with SQLAlchemy's `+psycopg`.
    """
    return create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=20,
        pool_timeout=CONNECT_TIMEOUT_S,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "keyscale",
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c idle_in_transaction_session_timeout=30000",
        },
    )


def session_factory(engine: Engine) -> sessionmaker[Session]:
    """Returns the maker of sessions; objects stay readable after the commit."""
    return sessionmaker(engine, expire_on_commit=False)
