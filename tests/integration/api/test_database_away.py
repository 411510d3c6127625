"""PostgreSQL that is stopped by a signal: requests are refused in time, and all is well when it goes on."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.api.lifecycle.reconciler import Reconciler, ReconcilerPulse, Wakeup
from keyscale.db.connections import open_engine
from keyscale.db.limited_connection import ANSWER_TIMEOUT_S
from keyscale.db.migrate import migrate
from tests.support.servers.postgres import create_database, running_postgres
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from sqlalchemy import Engine

    from keyscale.api.control_plane.context import Context
    from keyscale.db.embedded import EmbeddedPostgres

pytestmark = pytest.mark.real

REFUSED_WITHIN_S = 2 * ANSWER_TIMEOUT_S  # the connection that waits, and the try to open another one


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def engine(own_postgres: EmbeddedPostgres) -> Iterator[Engine]:
    """In place of the server that other tests use as well."""
    engine = open_engine(create_database(own_postgres.url, f"test_{time.monotonic_ns()}"))
    migrate(engine)
    yield engine
    engine.dispose()


@contextmanager
def stopped(server: EmbeddedPostgres) -> Iterator[None]:
    """Stops all of a server's processes by a signal; they go on afterwards."""
    first = psutil.Process(int((server.root / "data" / "postmaster.pid").read_text().partition("\n")[0]))
    processes = [first, *first.children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def refusal(client: httpx.Client) -> tuple[int, str, bool, float]:
    began_s = time.monotonic()
    answer = client.get("/v1/jobs", timeout=60)
    took_s = time.monotonic() - began_s
    return answer.status_code, answer.json()["code"], "Retry-After" in answer.headers, took_s


def test_requests_are_refused_in_time_while_postgresql_hangs(
    client: httpx.Client, context: Context, own_postgres: EmbeddedPostgres
) -> None:
    pulse = ReconcilerPulse()
    reconciler = Reconciler(
        engine=context.engine, launcher=context.launcher, store=context.store, wakeup=Wakeup(), pulse=pulse
    )
    reconciler.start()
    try:
        wait_until(lambda: pulse.role == "leader", what="the election")
        assert client.get("/v1/jobs").status_code == 200
        with stopped(own_postgres), ThreadPoolExecutor(8) as clients:
            for asked in [clients.submit(refusal, client) for _ in range(8)]:
                status, code, is_retried, took_s = asked.result()
                assert (status, code, is_retried) == (503, "DATABASE_UNAVAILABLE", True)
                assert took_s < REFUSED_WITHIN_S
            wait_until(lambda: pulse.role == "down", what="the reconciler's notice")
        wait_until(lambda: client.get("/v1/jobs").status_code == 200, what="an answer once PostgreSQL goes on")
        wait_until(lambda: pulse.role == "leader", what="the next election")
    finally:
        reconciler.close()
