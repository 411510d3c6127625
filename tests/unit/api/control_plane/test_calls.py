"""An attempt has one request that waits for a call."""

from __future__ import annotations

import asyncio

from sqlalchemy.orm import sessionmaker

from keyscale.api.control_plane.calls import Calls
from keyscale.db.repositories.operations import Listening
from tests.support.coroutines import run_coroutine

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
