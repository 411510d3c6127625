"""A deadlock and a slow statement are told apart from a database that does not answer."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from keyscale.db.connections import is_database_away, is_given_up, is_too_slow

if TYPE_CHECKING:
    import httpx
    from sqlalchemy import Engine

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real


@pytest.fixture
def engine(new_engine: Engine) -> Engine:
    return new_engine


def test_a_request_that_waits_too_long_for_a_lock_says_so(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    with context.engine.begin() as holder:
        holder.execute(text("SELECT 1 FROM jobs FOR UPDATE"))
        answer = client.post(f"/v1/jobs/{job['id']}/start", timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_SLOW")
    assert answer.headers["retry-after"]
    assert client.post(f"/v1/jobs/{job['id']}/start").status_code == 202


def test_a_deadlock_is_no_outage(context: Context) -> None:
    with context.engine.connect() as one, context.engine.connect() as other:
        for connection, key in ((one, 1), (other, 2)):
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
        failures: list[DBAPIError] = []

        def wait_for_the_second() -> None:
            try:
                one.execute(text("SELECT pg_advisory_xact_lock(2)"))
            except DBAPIError as error:
                failures.append(error)
                one.rollback()

        waiting = threading.Thread(target=wait_for_the_second)
        waiting.start()
        try:
            other.execute(text("SELECT pg_advisory_xact_lock(1)"))
        except DBAPIError as error:
            failures.append(error)
        other.rollback()
        waiting.join()
    [failure] = failures
    assert is_given_up(failure)
    assert not is_database_away(failure)
    assert not is_too_slow(failure)


def test_an_outage_is_an_outage(context: Context) -> None:
    with context.engine.connect() as connection, pytest.raises(DBAPIError) as raised:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert is_database_away(raised.value)
    assert not is_given_up(raised.value)


def test_connections_that_postgresql_ended_while_they_were_idle_are_replaced_before_anybody_uses_one(
    context: Context,
) -> None:
    _open(context, 4)
    with context.engine.begin() as connection:
        ended = connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
        assert ended.scalars().all() == [True] * 3
    _open(context, 4)


def test_connections_stay_open_after_many_were_needed_at_once(context: Context) -> None:
    _open(context, 20)
    opened: list[Any] = []
    event.listen(context.engine, "connect", lambda connection, _: opened.append(connection))
    _open(context, 20)
    assert opened == []


def _open(context: Context, number: int) -> None:
    """Uses so many connections at once."""
    with ExitStack() as stack:
        for connection in [stack.enter_context(context.engine.connect()) for _ in range(number)]:
            assert connection.scalar(text("SELECT 1")) == 1
