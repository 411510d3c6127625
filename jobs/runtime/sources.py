"""A job's sources as the one streaming frame that Spark's query has, and apart again in each batch.

With several sources a row is in one of several struct columns, one a source; `__source` says which. So there is one query,
whose batches have one set of offsets and one commit. The sources are put together in the order that the job has had them
in first, whatever their order in the script is now: Spark knows them by their places only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.runtime.source_order import positions_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from jobs.nodes import NodeId, SourceNode
    from state.identifiers import OperatorUid

_SOURCE = "__source"


@dataclass(frozen=True, slots=True)
class JobSources:
    """The sources of a job.

    Attributes:
        nodes: In the order in which Spark has them.
    """

    nodes: tuple[SourceNode, ...]

    @classmethod
    def ordered(cls, nodes: Sequence[SourceNode], uids: Sequence[OperatorUid]) -> JobSources:
        """The sources in the order of their uids."""
        return cls(tuple(sorted(nodes, key=lambda node: uids.index(node.uid))))

    def stream(self) -> DataFrame:
        """The streaming frame of all."""
        if len(self.nodes) == 1:
            return self.nodes[0].frame
        return reduce(
            lambda left, right: left.unionByName(right, allowMissingColumns=True),
            (
                node.frame.select(F.lit(place).alias(_SOURCE), F.struct("*").alias(_column(place)))
                for place, node in enumerate(self.nodes)
            ),
        )

    def positions(self, recorded: Mapping[str, str]) -> dict[str, str]:
        """What Spark's query over `stream` starts from.

        Raises:
            RestoreRefusedError: A source has more or fewer inputs of Spark's than before.
        """
        return positions_for(recorded, [node.uid for node in self.nodes], self.inputs())

    def inputs(self) -> list[int]:
        """How many inputs of Spark's the query has up to and with each source, in order.

        A source's frame may have several, such as a union of topics, and two frames may share one.
        """
        seen: set[Any] = set()
        counts = []
        for node in self.nodes:
            leaves = node.frame._jdf.queryExecution().analyzed().collectLeaves()
            seen.update(leaf for leaf in (leaves.apply(at) for at in range(leaves.size())) if leaf.isStreaming())
            counts.append(len(seen))
        return counts

    def split(self, frame: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> dict[NodeId, DataFrame]:
        """The records of each source in a batch; `keep` makes a frame one that is computed once."""
        if len(self.nodes) == 1:
            return {self.nodes[0].id: frame}
        kept = keep(frame)  # else every source would be read once for each of them
        return {
            node.id: kept.where(F.col(_SOURCE) == place).select(F.col(_column(place) + ".*"))
            for place, node in enumerate(self.nodes)
        }

    def empty(self, spark: SparkSession) -> dict[NodeId, DataFrame]:
        """A frame of each source without a record, for a batch that has no input but time.

        They are no local relations, which Spark would see to be empty, and leave out all that comes after them.
        """
        return {
            node.id: spark.createDataFrame(
                spark.sparkContext.emptyRDD(), from_arrow_schema(node.schema, prefer_timestamp_ntz=True)
            )
            for node in self.nodes
        }


def _column(place: int) -> str:
    return f"{_SOURCE}_{place}"
