"""Counts the streams that a streaming frame reads, as a line of Spark's recorded offsets belongs to each.

It relies on `DataFrame._jdf`, PySpark's private reference to the frame in the JVM (since Spark 1.3), and there on
Spark's analysed plan: its leaves, which of them are streams, and that two frames of one stream share its leaf.

Switched off by `source-inputs`, every frame counts as one stream of its own. A job whose source is a union of streams,
or with two sources that read one stream, then fails to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.spark_switches import SparkUse, switched_off

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def inputs_up_to(frames: Sequence[DataFrame]) -> list[int]:
    """Counts the different streams that are read by the frames up to and including each, in order.

    A frame may read several, such as a union of topics, and two frames may read the same one.
    """
    if SparkUse.SOURCE_INPUTS in switched_off():
        return list(range(1, len(frames) + 1))
    seen: set[Any] = set()
    counts = []
    for frame in frames:
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        seen.update(leaf for leaf in (leaves.apply(at) for at in range(leaves.size())) if leaf.isStreaming())
        counts.append(len(seen))
    return counts
