"""The thread that checks whether the object store answers.

The status of a waiting job shows the result.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.errors import KeyscaleError

if TYPE_CHECKING:
    from keyscale.state.doors.objects import ObjectStore

    from ..control.driver_status import DriverStatus

logger = logging.getLogger(__name__)

_POLL_SECONDS = 2.0


class StoreWatch:
    """Asks the store for one object every two seconds.

    It does so independently of the batches.

    Args:
        store: The object store.
        path: Path of an object, which need not exist.
        status: Takes the time since when the store has not answered.
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
        """Ends the thread."""
        self._ended.set()

    def poll(self) -> None:
        """Asks once, and updates the status."""
        began_ms = now_ms()
        try:
            self._store.head(self._path)
        except KeyscaleError as error:
            if self._away_since_ms is None:
                self._away_since_ms = began_ms
                logger.warning("the object store does not answer: %s: %s", error.code, error)
        else:
            if self._away_since_ms is not None:
                logger.warning("the object store answers again after %d ms", now_ms() - self._away_since_ms)
            self._away_since_ms = None
        self._status.store_seen(self._away_since_ms)

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self.poll()
