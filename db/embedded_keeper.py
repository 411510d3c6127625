"""Keeps an embedded PostgreSQL running."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from .errors import EmbeddedPostgresError

if TYPE_CHECKING:
    from .embedded import EmbeddedPostgres

logger = logging.getLogger(__name__)

POLL_S = 1.0


class EmbeddedPostgresKeeper:
    """A thread that restarts a dead embedded PostgreSQL.

    Args:
        postgres: The server, which has been started.
    """

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedded-postgres", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; the server may be stopped afterwards."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            if self._postgres.is_alive():
                continue
            logger.warning("the embedded PostgreSQL has died; starting it again")
            try:
                self._postgres.start()
            except EmbeddedPostgresError:  # such as while processes of the dead server still end
                logger.exception("the embedded PostgreSQL cannot be started; trying again")
