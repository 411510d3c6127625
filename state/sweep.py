"""Getting rid of expired entries that nobody reads: a few at a time while a job runs, or all of a store at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state.engine import Engine, Mutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.pending import Pending
    from state.ttl import IncrementalCleanup

_STEP_MIN = 512  # entries owed before a step is taken: a step costs a seek, whatever its length
_PURGE_STEP = 10_000


class Sweeper:
    """Goes round all stored entries of a family and removes those that are expired.

    It looks at what the engine holds, so an entry that the current batch has written or refreshed, which is pending, is
    passed over: its stored form says nothing any more.
    """

    __slots__ = ("_cleanup", "_cursor", "_engine", "_expired", "_fresh", "_owed", "_pending")

    def __init__(
        self,
        cleanup: IncrementalCleanup,
        engine: Engine,
        pending: Pending,
        expired: Callable[[], Callable[[bytes], bool]],
        fresh: Callable[[], tuple[bytes, bytes]],
    ) -> None:
        """For one family.

        Args:
            cleanup: How many entries to look at, and when.
            engine: The store.
            pending: What the batch has changed.
            expired: Gives what tells whether a stored value is expired as of now.
            fresh: Gives between which bytes most values lie that are not, which is told sooner.
        """
        self._cleanup = cleanup
        self._engine = engine
        self._pending = pending
        self._expired = expired
        self._fresh = fresh
        self._cursor = b""
        self._owed = 0

    @property
    def every_record(self) -> bool:
        """Whether every record counts as an access."""
        return self._cleanup.every_record

    def accessed(self, times: int = 1) -> None:
        """The state was accessed."""
        self._owed += self._cleanup.entries * times
        if self._owed >= _STEP_MIN:
            self.step()

    def record(self) -> None:
        """A record begins; of a cleanup that wants every record."""
        self.accessed()

    def step(self) -> None:
        """Look at as many entries as are owed."""
        count, self._owed = self._owed, 0
        pending = self._pending
        pending.settle()
        entries = pending.entries
        seen = list(self._engine.scan(pending.family, self._cursor, None, count))
        first, end = self._fresh()
        stale = [entry for entry in seen if not first <= entry[1] < end]
        expired = self._expired()
        for key, raw in stale:
            if expired(raw) and key not in entries:
                entries[key] = None
        self._cursor = seen[-1][0] + b"\0" if len(seen) == count else b""


def purge(engine: Engine, family: str, expired: Callable[[bytes], bool]) -> tuple[int, int]:
    """Remove all expired entries of a family from a store; how many were looked at, and how many removed.

    Nothing reads an expired entry, so this needs no changelog: a store that is rebuilt from one without the purge behaves the same.
    """
    looked_at, removed, start = 0, 0, b""
    while True:
        seen = list(engine.scan(family, start, None, _PURGE_STEP))
        gone = [Mutation(family, key, None) for key, raw in seen if expired(raw)]
        if gone:
            engine.write(gone)
        looked_at += len(seen)
        removed += len(gone)
        if len(seen) < _PURGE_STEP:
            return looked_at, removed
        start = seen[-1][0] + b"\0"
