"""Calls drivers that wait until the control plane wants their next report."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from keyscale.db.repositories import operations

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.db.repositories.operations import Listening

logger = logging.getLogger(__name__)

POLL_S = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request of a driver that waits for a call."""

    driver: Listening
    loop: asyncio.AbstractEventLoop
    is_called: asyncio.Event

    def call(self) -> None:
        if not self.loop.is_closed():  # else the server has ended, and the request with it
            self.loop.call_soon_threadsafe(self.is_called.set)


class Calls:
    """A thread that polls the database while drivers wait.

    A driver that has nothing to report waits here instead of asking for commands again and again. One statement finds
    the drivers to call among all that wait at this replica. A waiting driver holds no thread and no connection to the
    database. A call that gets lost costs only time: commands stay in the database.
    """

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._waiters: dict[tuple[str, int], _Waiter] = {}
        self._came = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end_all(self) -> None:
        """Calls all present and future drivers, which then turn to another replica."""
        self._closing.set()
        self._came.set()
        with self._lock:
            waiters = tuple(self._waiters.values())
        for waiter in waiters:
            waiter.call()

    def close(self) -> None:
        """Calls all drivers, and ends the thread."""
        self.end_all()
        if self._thread.is_alive():
            self._thread.join()

    async def wait(self, driver: Listening, seconds: float) -> bool:
        """Waits until a driver is called.

        A second request of the same attempt calls the first one: a job could otherwise take all connections of the
        control plane.

        Returns False if the time is over first.
        """
        waiter = _Waiter(driver, asyncio.get_running_loop(), asyncio.Event())
        attempt = driver.job_id, driver.attempt
        with self._lock:
            earlier = self._waiters.get(attempt)
            self._waiters[attempt] = waiter
            self._came.set()
        if earlier is not None:
            earlier.call()
        if self._closing.is_set():
            waiter.call()
        try:
            async with asyncio.timeout(seconds):
                await waiter.is_called.wait()
        except TimeoutError:
            return False
        else:
            return True
        finally:
            with self._lock:
                if self._waiters.get(attempt) is waiter:
                    del self._waiters[attempt]

    def poll(self) -> None:
        """Polls the database once, and calls the drivers that are wanted."""
        with self._lock:
            waiters = tuple(self._waiters.values())
            if not waiters:
                self._came.clear()  # under the lock: a driver that comes now sets it after this
        if not waiters:
            return
        with self._sessions() as session:
            wanted = operations.wanted(session, {waiter.driver for waiter in waiters})
        for waiter in waiters:
            if waiter.driver in wanted:
                waiter.call()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._came.wait()
            try:
                self.poll()
            except SQLAlchemyError as error:
                logger.warning("waiting drivers are not called: %s", type(error).__name__)
            self._closing.wait(POLL_S)
