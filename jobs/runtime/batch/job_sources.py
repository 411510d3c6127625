"""A job's sources as one streaming frame, and split again per batch.

With several sources, a row is in one of several struct columns, one per source; `__source` says in which. So one query
has batches with one set of offsets and one commit. The sources stay in the order in which the job first had them,
whatever their order in the script is now, because Spark knows them only by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from ...operators.operator_contract import SPLIT_COLUMN
from ...sources.source_reader import source_of
from ...spark_internals.arrow_schemas import spark_schema_of
from ...spark_internals.source_inputs import inputs_up_to, kinds_of, names_of, options_of, streams_of
from .source_order import SourceInputs, positions_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from keyscale.identifiers import OperatorUid

    from ...graph.nodes import NodeId, SourceNode
    from ...sources.source import Source

_SOURCE = "__source"
_SPARK_KAFKA = "kafka"
_SPLIT = pa.field(SPLIT_COLUMN, pa.string())


@dataclass(frozen=True, slots=True)
class JobSources:
    """The sources of a job.

    Attributes:
        nodes: The sources, in the order of their places in Spark's query.
    """

    nodes: tuple[SourceNode, ...]

    @classmethod
    def ordered(cls, nodes: Sequence[SourceNode], uids: Sequence[OperatorUid]) -> JobSources:
        """Sorts sources by a list of their uids."""
        return cls(tuple(sorted(nodes, key=lambda node: uids.index(node.uid))))

    def stream(self) -> DataFrame:
        """Returns the streaming frame of all sources."""
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
        """Returns the files that Spark's query over `stream` starts from.

        Raises:
            RestoreRefusedError: A source has more or fewer of Spark's inputs than before.
        """
        kinds = {node.uid: kinds for node in self.nodes if (kinds := kinds_of(node.frame))}
        return positions_for(recorded, [node.uid for node in self.nodes], self.inputs(), kinds)

    def declared(self) -> list[SourceInputs]:
        """Returns the program's declaration of its sources."""
        counts = self.inputs()
        return [
            SourceInputs(node.uid, count - before, kinds_of(node.frame))
            for node, count, before in zip(self.nodes, counts, [0, *counts], strict=False)
        ]

    def inputs(self) -> list[int]:
        """Returns the number of Spark's inputs up to each source, in order.

        The number includes the inputs of the source itself.
        """
        return inputs_up_to([node.frame for node in self.nodes])

    def counting(self) -> list[Source]:
        """Returns a copy of the source of each input.

        Returns none if an input is a stream of Spark's own, unless its ends are known without Spark.
        """
        frames = [node.frame for node in self.nodes]
        found = [
            _kafka_of(options) if kind == _SPARK_KAFKA else source_of(kind)
            for kind, options in zip(streams_of(frames), options_of(frames), strict=True)
        ]
        sources = [source for source in found if source is not None]
        return sources if len(sources) == len(found) else []

    def names(self) -> list[str]:
        """Returns Spark's name of each input."""
        return names_of([node.frame for node in self.nodes])

    def input_uids(self) -> list[OperatorUid]:
        """Returns the uid of the source of each input.

        Of an input that several sources read, it is the uid of the first source.
        """
        counts = self.inputs()
        return [
            node.uid
            for node, count, before in zip(self.nodes, counts, [0, *counts], strict=False)
            for _ in range(count - before)
        ]

    def split(self, frame: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> dict[NodeId, DataFrame]:
        """Returns the records of each source in a batch.

        `keep` makes Spark compute a frame only once.
        """
        if len(self.nodes) == 1:
            return {self.nodes[0].id: frame}
        kept = keep(frame)  # otherwise Spark would read all sources once per source
        return {
            node.id: kept.where(F.col(_SOURCE) == place).select(F.col(_column(place) + ".*"))
            for place, node in enumerate(self.nodes)
        }

    def empty(self, spark: SparkSession) -> dict[NodeId, DataFrame]:
        """Returns an empty frame per source, for a batch of time alone.

        The frames are not local relations: Spark would know local relations to be empty, and skip all operators after
        them.
        """
        return {
            node.id: spark.createDataFrame(
                spark.sparkContext.emptyRDD(),
                spark_schema_of(node.schema.append(_SPLIT) if node.carries_split else node.schema),
            )
            for node in self.nodes
        }


def _column(place: int) -> str:
    return f"{_SOURCE}_{place}"


def _kafka_of(options: Mapping[str, str]) -> Source | None:
    from ...sources.spark_kafka import kafka_of  # noqa: PLC0415 - few jobs need the client

    return kafka_of(options)
