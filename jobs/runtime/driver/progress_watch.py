"""Watches Spark's progress reports of a query.

They report records that wait, were lost, or are still in the sources.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyscale.clock import now_ms

from ..batch.batch_metrics import lost_records, pending_records, source_metrics, source_retention_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from keyscale.identifiers import OperatorUid

    from ...spark_internals.idle_queries import IdleQueries
    from ..control.driver_status import DriverStatus
    from .job_query import JobQuery

_POLLS_AFTER_COMMIT = 2  # Spark reports a batch's progress a moment after its commit
_SOURCES_SECONDS = 10.0


class ProgressWatch:
    """Passes Spark's progress reports on to the driver's status.

    It is not thread-safe.

    Args:
        query: The job's query.
        idle: Knows whether the query waits for input.
        source_uids: The sources, in the order of the query's inputs.
        status: The status.
        clock: Returns seconds.
    """

    def __init__(
        self,
        query: JobQuery,
        idle: IdleQueries,
        source_uids: Sequence[OperatorUid],
        status: DriverStatus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query = query
        self._idle = idle
        self._source_uids = source_uids
        self._status = status
        self._clock = clock
        self._running = query.current
        self._commits = status.commits
        self._polls_left = 0
        self._sources_seen_at: float | None = None

    def poll(self) -> None:
        """Polls for changes; cheap if nothing was committed."""
        current = self._query.current
        self._status.waits_for_input(self._idle.has(current))
        if current is not self._running:
            self._pass_on(self._running)  # the last report of the previous query
            self._running = current
        if self._status.commits != self._commits:
            self._commits, self._polls_left, self._sources_seen_at = self._status.commits, _POLLS_AFTER_COMMIT, None
        if self._polls_left:
            self._polls_left -= 1
            self._pass_on(current)
        now = self._clock()
        if self._sources_seen_at is None or now - self._sources_seen_at > _SOURCES_SECONDS:
            self._sources_seen_at = now  # records also expire while there is no input
            progress = current.lastProgress
            self._status.sources_still_have(source_metrics(progress, self._source_uids, now_ms()))
            self._status.sources_keep_records(source_retention_ms(progress))

    def poll_once_more(self) -> None:
        """Polls once more after the run ends, to include the last batch."""
        for query in dict.fromkeys((self._running, self._query.current)):
            self._pass_on(query)

    def _pass_on(self, query: StreamingQuery) -> None:
        progress = query.lastProgress
        if progress is not None:  # a query that has just begun has no newer report
            self._status.sources_are_behind(pending_records(progress))
            self._status.sources_have_lost(lost_records(progress), of_query=str(progress["runId"]))
