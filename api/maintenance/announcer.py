"""Announces the address of this replica.

Other replicas read it in the database, drivers in the store.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from keyscale.clock import now_ms
from keyscale.db.repositories import jobs, replicas
from keyscale.errors import KeyscaleError
from keyscale.jobs.protocol.control_address import ControlAddress, publish, withdraw
from keyscale.state.doors.objects import open_store

from ..database_clock import follow_database_clock

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

logger = logging.getLogger(__name__)

ANNOUNCE_S = 2.0
PUBLISH_S = 30.0


def replica_id(place: str) -> str:
    """Returns the id of the replica at a place.

    A place is the host and home of its launcher.
    """
    return hashlib.sha256(place.encode()).hexdigest()[:32]


class Announcer:
    """A thread that announces this replica and knows the other replicas.

    Args:
        sessions: The database.
        place: This replica's host and home: a later control plane of the same home takes its place.
        url: Where it can be reached.
        store_url: The store of new jobs; the stores of all jobs that run get the address, too.

    Attributes:
        replica_id: The id of this replica.
    """

    def __init__(self, sessions: sessionmaker[Session], *, place: str, url: str, store_url: str) -> None:
        self._sessions = sessions
        self.replica_id = replica_id(place)
        self._url = url
        self._store_url = store_url
        self._urls: list[str] = []
        self._published_at_s: dict[str, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)

    @property
    def urls(self) -> list[str]:
        """The addresses of live replicas, as last read from the database."""
        return self._urls

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and withdraws the address."""
        self._closing.set()
        self._thread.join()
        try:
            with self._sessions.begin() as session:
                replicas.withdraw(session, self.replica_id)
            for store_url in self._published_at_s:
                withdraw(open_store(store_url), self.replica_id)
        except (SQLAlchemyError, KeyscaleError, OSError):
            logger.info("the address is not withdrawn, and gets old", exc_info=True)

    def announce(self) -> None:
        """Announces this replica once, in the database and outdated stores.

        A store is outdated if it has not got the address lately.
        """
        with self._sessions.begin() as session:
            follow_database_clock(session)
            replicas.announce(session, self.replica_id, self._url)
            self._urls = list(replicas.urls(session))
            stores = {self._store_url, *jobs.stores_in_use(session)}
        for store_url in sorted(stores):
            if time.monotonic() - self._published_at_s.get(store_url, float("-inf")) > PUBLISH_S:
                self._publish(store_url)

    def _publish(self, store_url: str) -> None:
        try:
            publish(open_store(store_url), self.replica_id, ControlAddress(url=self._url, recorded_at_ms=now_ms()))
        except Exception as error:  # noqa: BLE001 - a store that cannot be opened must not keep other stores from getting it
            logger.warning("%s does not get this replica's address: %s; trying again", store_url, error)
        else:
            self._published_at_s[store_url] = time.monotonic()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.announce()
            except SQLAlchemyError as error:
                logger.warning("this replica cannot announce its address: %s; trying again", type(error).__name__)
            except Exception:  # the thread survives every error: without it this replica counts as ended
                logger.exception("a defect: this replica cannot announce its address; trying again")
            self._closing.wait(ANNOUNCE_S)
