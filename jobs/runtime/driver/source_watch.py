"""Watches the sources of an idle or sleeping job without Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keyscale.units import counted

from ...sources.directory_watch import DirectoryWatch, local_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

SETTLED_SECONDS = 5.0
"""The query has polled a directory within this time and the given time without a commit."""


class SourceWatch:
    """Watches the sources of an idle or sleeping job.

    A batch reads a file that the directory had at the first look, unless the query has not polled since. So the watch
    is settled only after some polls without a commit, and a later file is news.

    Args:
        names: Spark's name of each input, such as `FileSource[/in]`; none: sources that count their records.
        waiting: Returns the records that wait in sources that count; None if unknown.
        has_begun: Returns whether the log has positions of all sources that count. A source may begin at its present
            end: the next attempt would otherwise miss the records that wake the job.
        loss: Returns what the sources that count have lost. The next attempt finds it, too, and fails.
    """

    def __init__(
        self,
        names: Sequence[str],
        waiting: Callable[[], int | None],
        *,
        has_begun: Callable[[], bool] = lambda: True,
        loss: Callable[[], str | None] = lambda: None,
    ) -> None:
        paths = {name: _directory_of(name) for name in names}
        self._directories = [DirectoryWatch(path) for path in paths.values() if path is not None]
        self._unwatched = [name.partition("[")[0] for name, path in paths.items() if path is None]
        self._counts = not names
        self._waiting = waiting
        self._has_begun = has_begun
        self._loss = loss
        self._commits: int | None = None
        self._noted_at = 0.0
        self._is_quiet = False

    @property
    def unwatched(self) -> Sequence[str]:
        """The kinds of the sources that cannot be watched."""
        if self._counts and self._waiting() is None:
            return ["a source that does not count"]
        return ["a source that the job has not read"] if self._counts and not self._has_begun() else self._unwatched

    def poll(self, now: float, commits: int) -> None:
        """Notes the present files after each commit."""
        if commits != self._commits:
            for directory in self._directories:
                directory.note()
            self._commits, self._noted_at = commits, now

    def is_settled(self, now: float, quiet_ms: int) -> bool:
        """Returns whether the query has polled since the files were noted."""
        return self._commits is not None and now - self._noted_at >= SETTLED_SECONDS + quiet_ms / 1000

    def news(self) -> str | None:
        """Returns what has arrived, in words; None: nothing."""
        if self._counts and (found := self._loss()) is not None:
            return found
        if self._counts and (waiting := self._waiting()):
            return f"{counted(waiting, 'record')} waiting"
        try:
            has_files = any(directory.has_news() for directory in self._directories)
        except OSError as error:
            if not self._is_quiet:
                logger.warning("a directory cannot be read: %s", error)
            self._is_quiet = True
            return None
        self._is_quiet = False
        return "a file has arrived" if has_files else None


def _directory_of(name: str) -> str | None:
    kind, _, path = name.rstrip("]").partition("[")
    return local_directory(path) if kind == "FileSource" and path else None
