"""The commit log of a running job, read as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyscale.state.documents.log_entries import LogEntry
    from keyscale.state.log.commit_log import CommitLog


class FollowedLog:
    """Keeps the entries of a log.

    A driver's clean-up deletes entries before the oldest retained checkpoint, for the first time after a minute. So
    call `read` more often than checkpoints are taken.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._position = 0
        self._entries: list[LogEntry] = []

    def read(self) -> list[LogEntry]:
        """Returns all entries so far.

        Raises:
            LogGapError: The clean-up has deleted entries since the last call.
        """
        new = self._log.read(self._position)
        self._position += len(new)
        self._entries += [entry for _, entry in new]
        return self._entries
