"""The thread that sees whether the object store answers, so that a job that waits for it says so."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from jobs.runtime.clock import now_ms
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from jobs.runtime.status import DriverStatus
    from state.objects import ObjectStore

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


class StoreWatch:
    """Asks the store for one object every two seconds, whatever the batches do.

    Args:
        store: The object store.
        path: Of an object; whether it is there does not matter.
        status: Is told since when the store has been away.
    """

    def __init__(self, store: ObjectStore, path: str, status: DriverStatus) -> None:
        self._store = store
        self._path = path
        self._status = status
        self._ended = threading.Event()
        self._away_since_ms: int | None = None
        self._thread = threading.Thread(target=self._run, name="store-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def look(self) -> None:
        """Ask once, and tell the status."""
        began_ms = now_ms()
        try:
            self._store.head(self._path)
        except KeyscaleError as error:
            if self._away_since_ms is None:
                self._away_since_ms = began_ms
                _log.warning("the object store is away: %s: %s", error.code, error)
        else:
            if self._away_since_ms is not None:
                _log.warning("the object store is back after %d ms", now_ms() - self._away_since_ms)
            self._away_since_ms = None
        self._status.store_seen(self._away_since_ms)

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self.look()
