"""Spark's streaming query of a job: it reads on and on, or drains what there is."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)


class JobQuery:
    """The one query of Spark that runs a job's batches; replaced by another one when the job is drained.

    Args:
        start: Starts a query from the committed positions, with which no batch of an earlier query runs any more. Its
            argument says whether the query reads up to the input's present end only.
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
        """Whether the query, which should read on and on, has ended. Does not wait."""
        return not self._draining and not self._query.isActive and not self._draining

    def drain(self) -> None:
        """Processes the input up to where it ends now, though more may come. Afterwards no query runs.

        Raises:
            StreamingQueryException: A batch failed, or a source.
        """
        self._draining = True
        if self._replace(until_present_end=True):
            self._query.awaitTermination()

    def read_on(self) -> None:
        """Reads on and on again, after a drain that did not lead to the job's end."""
        self._replace(until_present_end=False)
        self._draining = False

    def stop(self) -> None:
        """Ends the query; no other one starts."""
        with self._lock:
            self._stopped = True
        self._query.stop()

    def _replace(self, *, until_present_end: bool) -> bool:
        """Starts another query; returns whether it did, which it does not when the run ends."""
        with self._lock:
            if self._stopped:
                return False
            before, self._query = self._query, self._start(until_present_end)
        before.stop()
        return True
