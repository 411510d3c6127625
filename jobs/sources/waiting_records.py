"""The records of a source that no committed batch has read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .positions import BatchPositions, behind_by_split, with_discovered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .source import Position, Source


class WaitingRecords:
    """Counts the records between a source's committed positions and its present ends.

    Args:
        source: A copy of the source for this object alone.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._begin: Mapping[str, Position] | None = None
        self._ends: Mapping[str, Position] | None = None

    def ask(self, committed: str | None, planned: str | None) -> None:
        """Asks the source for its present ends.

        The source may raise any exception.
        """
        self._ends = self._source.latest(self._reached(committed, planned), None)

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
        before, running = _positions(committed), _positions(planned)
        reached = with_discovered(before.reached, {name: start for name, (start, _) in running.splits.items()})
        if reached:
            return reached
        if self._begin is None:
            self._begin = dict(self._source.discover(()))
        return self._begin


def _positions(record: str | None) -> BatchPositions:
    return BatchPositions() if record is None else BatchPositions.from_json(json.loads(record))
