"""Removes expired entries: a few at a time, or all at once."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from ..engine.engine import Mutation
from .batch_clock import TimeDomain
from .formats import expiry_check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..engine.engine import Engine
    from .batch_clock import Clock
    from .pending import Pending
    from .schema import KeyedSchema
    from .ttl import IncrementalCleanup, Ttl

_STEP_MIN = 512  # entries to check before a step is taken: every step needs a seek, whatever its length
_PURGE_STEP = 10_000


class Sweeper:
    """Checks all stored entries of a family repeatedly, and removes expired ones.

    It reads the engine, so it skips pending entries: the current batch has changed them, and their stored form is
    outdated.
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
        """Creates the sweeper of one family.

        Args:
            cleanup: How many entries to check, and when.
            engine: The store.
            pending: The batch's changes.
            expired: Returns a check whether a stored value is expired now.
            fresh: Returns the range of bytes with most unexpired values, for a quicker check.
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
        """Counts accesses to the state, and takes a step when due."""
        self._owed += self._cleanup.entries * times
        if self._owed >= _STEP_MIN:
            self.step()

    def record(self) -> None:
        """Counts a record; for a cleanup with `every_record`."""
        self.accessed()

    def step(self) -> None:
        """Checks the number of entries that is due."""
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


class Occasion(StrEnum):
    """An occasion to omit expired entries; a TTL's cleanup chooses among them."""

    FULL_SNAPSHOT = "full_snapshot"
    COMPACTION = "compaction"


class Purged(NamedTuple):
    """The numbers of checked and of removed entries."""

    seen: int
    removed: int


def expired_entries(
    schema: KeyedSchema | None, ttls: Mapping[str, Ttl], clock: Clock, occasion: Occasion
) -> dict[str, Callable[[bytes], bool]]:
    """Returns checks, by family, whether a stored value may be omitted; pure.

    An expired entry is never read, so it may be omitted from any copy without a changelog: a store that still has it
    behaves the same. Time must not go back afterwards, as with any TTL.

    Args:
        schema: The schema of the entries.
        ttls: The TTLs by state, as declared by the running job. Never pass the TTLs of an earlier run: the user may
            have prolonged the time to live since.
        clock: The current times.
        occasion: The occasion of the omission.
    """
    checks = {}
    for name, ttl in ttls.items():
        state = None if schema is None else schema.state(name)
        wanted = ttl.cleanup.full_snapshot if occasion is Occasion.FULL_SNAPSHOT else ttl.cleanup.compaction
        if state is None or not ttl.enabled or not wanted:
            continue
        now = clock.event_time_ms if ttl.time_domain is TimeDomain.EVENT else clock.processing_time_ms
        stamped = {number for number, each in enumerate(state.formats) if each.stamps == ttl.time_domain}
        checks[name] = expiry_check(stamped, now - ttl.duration_ms)
    return checks


def purge_all(engine: Engine, expired: Mapping[str, Callable[[bytes], bool]]) -> dict[str, Purged]:
    """Removes all expired entries of these families; returns the numbers by family.

    An expired entry is never read, so this needs no changelog: a store that is rebuilt without it behaves the same.
    """
    return {family: _purge(engine, family, is_expired) for family, is_expired in expired.items()}


def _purge(engine: Engine, family: str, expired: Callable[[bytes], bool]) -> Purged:
    looked_at, removed, start = 0, 0, b""
    while True:
        seen = list(engine.scan(family, start, None, _PURGE_STEP))
        removals = [Mutation(family, key, None) for key, raw in seen if expired(raw)]
        if removals:
            engine.write(removals)
        looked_at += len(seen)
        removed += len(removals)
        if len(seen) < _PURGE_STEP:
            return Purged(looked_at, removed)
        start = seen[-1][0] + b"\0"
