"""Flink SQL's deduplication query (first row by processing time, so its output only appends), on RocksDB, in the JVM.

Mini-batching is left off: with it Flink plans this query as one that updates its rows, which no file sink takes.
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
    """Deduplicate with Flink SQL."""
    task = DedupTask(**options)
    tables, rest = flink.table_environment(task, jars)
    return flink.run(task, rest, lambda: tables.execute_sql(QUERY))
