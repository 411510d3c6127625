"""The records of a source that no committed batch has read."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from .positions import BatchPositions, behind_by_split, with_discovered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .source import Position, Source


class WaitingRecords:
    """Counts the records between a source's committed positions and its present ends.

    Args:
        source: A copy of the source for this object alone.
        clock: Returns seconds.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        # A stream of Spark's own has a form of its own.
        self._positions_of: Callable[[Any], BatchPositions] = getattr(source, "positions_of", BatchPositions.from_json)
        self._discovered: Mapping[str, Position] = {}
        self._discovered_at: float | None = None
        self._begin: Mapping[str, Position] | None = None
        self._ends: Mapping[str, Position] | None = None

    def ask(self, committed: str | None, planned: str | None) -> None:
        """Asks the source for its present ends.

        Splits that the source has got since count from their beginning. The source may raise any exception.
        """
        reached = self._reached(committed, planned)
        now, before = self._clock(), self._discovered_at
        if reached is not self._begin and (
            before is None or 1000 * (now - before) >= self._source.discovery_interval_ms
        ):
            self._discovered = dict(self._source.discover(reached))
            self._discovered_at = now
        self._ends = self._source.latest(with_discovered(reached, self._discovered), None)

    def by_split(self, committed: str | None, planned: str | None) -> dict[str, int] | None:
        """Returns how many records of each split wait.

        Returns None if the source has not answered or cannot count.

        Args:
            committed: Spark's record of the positions after the last committed batch; None before the first.
            planned: Spark's record of the positions of a batch that runs, if any.
        """
        if self._ends is None:
            return None
        return behind_by_split(self._reached(committed, planned), self._ends, self._source.records_between)

    def close(self) -> None:
        """Closes the source."""
        self._source.close()

    def _reached(self, committed: str | None, planned: str | None) -> Mapping[str, Position]:
        """Returns the committed positions.

        Splits that only the running batch knows count from its start, and before the first batch the source says where
        the job will begin.
        """
        before, running = self._positions(committed), self._positions(planned)
        reached = with_discovered(before.reached, {name: start for name, (start, _) in running.splits.items()})
        if reached:
            return with_discovered(reached, self._discovered)
        if self._begin is None:
            self._begin = dict(self._source.discover(()))
        return self._begin

    def _positions(self, record: str | None) -> BatchPositions:
        return BatchPositions() if record is None else self._positions_of(json.loads(record))
