"""Flink SQL's deduplication query on RocksDB, in the JVM.

It takes the first row by processing time, so that its output only appends. Mini-batching is off: with it Flink plans a
query that updates its rows, which file sinks refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.peers import flink
from bench.peers.task import DedupTask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUERY = """
INSERT INTO kept
SELECT id, ts_ms, payload
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY seen_at ASC) AS row_number_of_id FROM events)
WHERE row_number_of_id = 1
"""


def run(*, jars: Sequence[str], **options: Any) -> Mapping[str, Any]:
    """Deduplicates with Flink SQL."""
    task = DedupTask(**options)
    tables, rest = flink.table_environment(task, jars)
    return flink.run(task, rest, lambda: tables.execute_sql(QUERY))
