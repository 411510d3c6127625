"""An attempt has one request that waits for a call, which comes when the database has something for its driver."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import sessionmaker

from keyscale.api.control_plane import calls as module
from keyscale.api.control_plane.calls import Calls
from keyscale.db.repositories import operations
from keyscale.db.repositories.operations import Listening
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    import pytest

LIMIT_S = 20.0


def test_a_second_request_of_an_attempt_ends_the_first_and_no_request_of_another_attempt() -> None:
    calls = Calls(sessionmaker())

    async def ask() -> None:
        other = asyncio.create_task(calls.wait(Listening("other", 1, 1), LIMIT_S))
        mine = [asyncio.create_task(calls.wait(Listening("mine", 1, revision), LIMIT_S)) for revision in (1, 2, 3)]
        done, waiting = await asyncio.wait([other, *mine], timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < len(mine) - 1:
            more, waiting = await asyncio.wait(waiting, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert waiting == {other, mine[-1]}
        assert all(each.result() for each in done)
        calls.end_all()
        assert await asyncio.gather(*waiting) == [True, True]

    run_coroutine(ask())
    assert not calls._waiters


def test_only_the_drivers_that_are_wanted_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(cast("Any", lambda: nullcontext("session")))
    asked: list[Any] = []
    mine, other = Listening("mine", 1, 2), Listening("other", 1, 1)

    def wanted(session: str, listening: set[Listening]) -> set[Listening]:
        asked.append((session, listening))
        return {mine}

    monkeypatch.setattr(operations, "wanted", wanted)

    async def ask() -> None:
        calls.poll()
        assert (asked, calls._came.is_set()) == ([], False), "the database is asked only while drivers wait"
        waiting = [asyncio.create_task(calls.wait(each, LIMIT_S)) for each in (mine, other)]
        await asyncio.sleep(0)
        assert calls._came.is_set()
        calls.poll()
        assert await waiting[0]
        assert asked == [("session", {mine, other})]
        assert list(calls._waiters) == [("other", 1)]
        calls.end_all()
        assert await waiting[1]
        assert await calls.wait(mine, LIMIT_S), "a control plane that ends lets no driver wait"

    run_coroutine(ask())


def test_a_driver_that_is_not_called_in_its_time_asks_again() -> None:
    calls = Calls(sessionmaker())
    assert not run_coroutine(calls.wait(Listening("mine", 1, 1), 0.001))
    assert not calls._waiters


def test_a_database_that_is_away_ends_no_later_poll(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(sessionmaker())
    polls: list[bool] = []

    def poll() -> None:
        polls.append(calls._closing.is_set())
        if len(polls) == 1:
            raise OperationalError("SELECT", None, Exception("away"))
        calls._closing.set()

    monkeypatch.setattr(module, "POLL_S", 0)
    monkeypatch.setattr(calls, "poll", poll)
    calls._came.set()
    calls.start()
    calls._thread.join()
    calls.close()
    assert polls == [False, False]
    assert caplog.messages == ["waiting drivers are not called: OperationalError"]
