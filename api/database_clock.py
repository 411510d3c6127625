"""The database's time, which all replicas share.

The clocks of their hosts may differ by minutes. The shared time is for times that one replica writes and another
replica compares: the expiry of tokens and sessions, a driver's last heartbeat, and whether a verification continues.
All other times come from the host.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories.database_time import database_now_ms

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)

AGREES_MS = 1000
"""A host's clock that differs from the database's clock by less is used directly."""


class DatabaseClock:
    """The database's clock: this host's clock plus its difference."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """Returns milliseconds since the epoch."""
        return now_ms() - self._ahead_ms

    def follow(self, session: Session) -> None:
        """Measures the difference of this host's clock.

        Called every few seconds.
        """
        before_ms = now_ms()
        database_ms = database_now_ms(session)
        after_ms = now_ms()
        ahead_ms = (before_ms + after_ms) // 2 - database_ms
        if abs(ahead_ms) < AGREES_MS + (after_ms - before_ms) // 2:
            ahead_ms = 0
        if abs(ahead_ms - self._ahead_ms) >= AGREES_MS:
            logger.warning("the clock of this host is ahead of the database's by %d ms", ahead_ms)
        self._ahead_ms = ahead_ms


_CLOCK = DatabaseClock()
follow_database_clock = _CLOCK.follow
shared_now_ms = _CLOCK.now_ms
