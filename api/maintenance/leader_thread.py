"""A thread that works beside the reconciler, while this control plane leads."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from ..errors import LeadershipLostError
from ..lifecycle.leadership import Leadership

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from ..lifecycle.reconciler import ReconcilerPulse

logger = logging.getLogger(__name__)


class LeaderThread(ABC):
    """Works periodically, and again immediately if more work is left.

    It may be killed between any two lines.

    Args:
        name: Of the thread, and of its work in the log.
        every_s: The pause between two polls, in seconds.
        sessions: The database.
        pulse: Shows whether this control plane leads, and in which epoch; only then the thread works.
    """

    def __init__(self, name: str, every_s: float, *, sessions: sessionmaker[Session], pulse: ReconcilerPulse) -> None:
        self._every_s = every_s
        self._sessions = sessions
        self._pulse = pulse
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self, leadership: Leadership) -> bool:
        """Does some of the work; returns whether there may be more.

        Args:
            leadership: The right to write.

        Raises:
            LeadershipLostError: Another replica leads and continues.
        """

    def rest(self) -> None:  # noqa: B027 - most threads have nothing to end
        """Ends what only a leader needs, while another replica leads."""

    @property
    def is_closing(self) -> bool:
        """Whether the work should end as soon as it can."""
        return self._closing.is_set()

    def pause(self, seconds: float) -> None:
        """Waits in the middle of the work; the thread's end wakes it."""
        self._closing.wait(seconds)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread once the work returns."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                while (epoch := self._pulse.epoch) is not None and not self.is_closing:
                    if not self.work(Leadership(self._sessions, epoch)):
                        break
                if epoch is None:
                    self.rest()
            except LeadershipLostError:
                logger.info("another replica leads, and continues: %s", self._thread.name)
            except SQLAlchemyError:
                logger.warning("the database fails; trying again: %s", self._thread.name, exc_info=True)
            except Exception:  # the thread survives every error: jobs decide the content of the store
                logger.exception("a defect; trying again: %s", self._thread.name)
