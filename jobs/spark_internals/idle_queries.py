"""Whether a streaming query has looked for input and found none.

It relies on Spark's events: an idle query sends an event at most every
`spark.sql.streaming.noDataProgressEventInterval`, and each batch sends its progress. Polling `StreamingQuery.status`
misses the moment in which a query waits: the moment is short compared with a slow listing of a source, or with a batch
interval.

The listener implements the private interface of PySpark's `StreamingQueryListener` (since Spark 3.4): the public class
reads each field of each batch's progress from the JVM, which wastes a quarter of a second. If Spark renames the
interface, drivers do not start.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.java_gateway import ensure_callback_server_started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class IdleQueries:
    """The queries of a session that wait for input, until `close`.

    May be used by several threads.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        self._manager: Any = spark.streams._jsqm
        self._events = _Events()
        streaming = gateway.jvm.org.apache.spark.sql.streaming
        self._listener = streaming.PythonStreamingQueryListenerWrapper(self._events)
        self._manager.addListener(self._listener)

    def has(self, query: StreamingQuery) -> bool:
        """Returns whether the query has looked for input and found none.

        Returns False within a batch.
        """
        return str(query.runId) in self._events.idle and not query.status["isDataAvailable"]

    def close(self) -> None:
        """Ends the events.

        Does nothing if Spark is gone.
        """
        with suppress(Exception):
            self._manager.removeListener(self._listener)


class _Events:
    """Receives events from the JVM, in the query's order."""

    def __init__(self) -> None:
        self.idle: set[str] = set()

    def onQueryStarted(self, _event: Any) -> None:  # noqa: N802 - Spark's name, as below
        """Does nothing: a start says nothing about input."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self.idle.add(event.runId().toString())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.idle.discard(event.progress().runId().toString())

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.idle.discard(event.runId().toString())

    class Java:
        """The interface, in the form that py4j expects."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
