"""The journal of an attempt, which commits batches.

It appends the attempt's entries to the commit log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..retries import Retries

if TYPE_CHECKING:
    from keyscale.state.doors.commits import CommitLog, LogEntry

NO_RETRIES = Retries(0)


class Journal:
    """Appends an attempt's entries to the commit log, without a gap.

    A fenced attempt cannot append.

    It is not thread-safe: batches append while they hold the batch lock.
    """

    def __init__(self, log: CommitLog, next_position: int, retries: Retries = NO_RETRIES) -> None:
        self._log = log
        self._next_position = next_position
        self._retries = retries

    @property
    def last_position(self) -> int:
        """The position of the last entry known to be in the log."""
        return self._next_position - 1

    def append(self, entry: LogEntry) -> None:
        """Appends an entry.

        Raises:
            FencedError: A newer attempt has taken over.
            StoreUnavailableError: The store did not answer in time. The entry may be in the log, so the run must end.
        """
        position = self._next_position
        self._next_position = self._retries.run(lambda: self._log.append(position, entry))

    def at(self, next_position: int) -> Journal:
        """Returns a journal of the same attempt that continues at this position."""
        return Journal(self._log, next_position, self._retries)

    def with_retries(self, retries: Retries) -> Journal:
        """Returns the same journal with retries.

        A retried append writes the same entry.
        """
        return Journal(self._log, self._next_position, retries)

    def is_overtaken(self) -> bool:
        """Returns whether a newer attempt has appended.

        May be called from any thread, also while a batch appends.
        """
        return self._log.is_continued_by_another(self._next_position - 1)
