"""Spark's streaming query of a job.

It reads continuously, or drains the present input.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)


class JobQuery:
    """The one Spark query that runs a job's batches.

    A drain replaces it by another query.

    Args:
        start: Starts a query from the committed positions, and stops the batches of earlier queries. Its argument says
            whether the query reads only up to the input's present end.
    """

    def __init__(self, start: Callable[[bool], StreamingQuery]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._stopped = False
        self._draining = False
        self._query = start(False)

    @property
    def current(self) -> StreamingQuery:
        return self._query

    @property
    def ended_by_itself(self) -> bool:
        """Whether the query ended although it should read continuously.

        Does not wait.
        """
        query = self._query
        has_ended = not self._draining and not query.isActive
        # Spark ends this query when another query with its id starts, and its batches are refused from then on. Looked
        # at last: a replacement that has not begun by now did not end the query.
        is_replaced = self._lock.locked() or self._query is not query
        return has_ended and not is_replaced

    def drain(self) -> None:
        """Processes the input up to its present end.

        Afterwards the job has no running query.

        Raises:
            StreamingQueryException: A batch or a source failed.
        """
        self._draining = True
        if self._replace(until_present_end=True):
            self._query.awaitTermination()

    def read_on(self) -> None:
        """Reads continuously again after a drain that did not end the job."""
        self._replace(until_present_end=False)
        self._draining = False

    def stop(self) -> None:
        """Ends the query and prevents further queries."""
        with self._lock:
            self._stopped = True
        self._query.stop()

    def _replace(self, *, until_present_end: bool) -> bool:
        """Starts another query, unless the run ends; returns whether it did."""
        with self._lock:
            if self._stopped:
                return False
            before, self._query = self._query, self._start(until_present_end)
        before.stop()
        return True
