"""Whether a streaming query waits for input.

It relies on the words of `StreamingQuery.status["message"]` (since Spark 2.1): no flag distinguishes a query that waits
from one that starts. If Spark words it otherwise, no query seems to wait: an idle job then shows the rates of its last
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_WAITING = "Waiting for data to arrive"


def is_waiting_for_input(query: StreamingQuery) -> bool:
    """Whether the query has looked for input since its last batch and found none."""
    return bool(query.status["message"] == _WAITING)
