"""An operator's keyed records, each in the partition of its key's subtask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from ...operators.two_inputs import BESIDE, PORT_COLUMN, struct_column
from .frames import tagged, tags_of, whole
from .routing import Routing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.values import HashId, KeyGroupRanges

    from ...graph.nodes import OperatorNode
    from ...graph.topology import Topology
    from ...spark_internals.affinity import PlacementDataset
    from .frames import Branches, OperatorInputs


class KeyedRecords:
    """Moves the records of operators to their subtasks, batch by batch.

    Args:
        topology: The job.
        placement: The subtasks' rows.
        ranges: The key groups of each subtask.
        hash_id: The hash that maps keys to key groups.

    Attributes:
        keyed_by_query: The operator with records that `of_query` moves, if any.
    """

    def __init__(
        self, topology: Topology, placement: PlacementDataset, *, ranges: KeyGroupRanges, hash_id: HashId
    ) -> None:
        self._topology = topology
        self._placement = placement
        self.keyed_by_query = topology.reader_of_all()
        self._none: dict[OperatorUid, DataFrame] = {}
        self._routings: dict[OperatorUid, tuple[Routing, ...]] = {}
        for node in topology.operators:
            keys = [node.key_columns, *([] if node.second is None else [node.second.key_columns])]
            self._routings[node.uid] = tuple(
                Routing.of(key_columns, ranges=ranges, hash_id=hash_id) for key_columns in keys
            )

    def of_query(self, stream: DataFrame) -> DataFrame:
        """Returns the frame that the query reads.

        If one operator alone reads the sources, the records are already moved to its subtasks.

        Spark analyses the frame once for all batches. Moving records in each batch takes as long as planning the rest
        of the batch.
        """
        node = self.keyed_by_query
        return stream if node is None else self._placement.route(self._routings[node.uid][0].mark(stream))

    def moved(self, node: OperatorNode, inputs: OperatorInputs) -> DataFrame:
        """Returns an operator's records in a batch."""
        routed = self._routed(node, inputs.first, 0)
        if inputs.second is not None:
            routed = _both(routed, self._routed(node, inputs.second, 1))
        return self._placement.route(routed)

    def none(self, node: OperatorNode, inputs: Callable[[], OperatorInputs]) -> DataFrame:
        """Returns the empty result of `moved`, without a shuffle.

        It is for an operator without input, and built only once.
        """
        if node.uid not in self._none:
            self._none[node.uid] = self._placement.empty(self.moved(node, inputs()).schema)
        return self._none[node.uid]

    def _routed(self, node: OperatorNode, branches: Branches, port: int) -> DataFrame:
        """Returns the records of one input, with key group and subtask."""
        arrivals = self._topology.arrivals(node)
        frame = tagged(branches, arrivals, port) if tags_of(arrivals) else whole(branches)
        return self._routings[node.uid][port].mark(frame)


def _both(first: DataFrame, second: DataFrame) -> DataFrame:
    """Returns the routed records of both inputs in one frame; see `two_inputs`."""
    return _one(first, 0).unionByName(_one(second, 1), allowMissingColumns=True)


def _one(frame: DataFrame, port: int) -> DataFrame:
    beside = [name for name in BESIDE if name in frame.columns]
    columns = ["`" + name.replace("`", "``") + "`" for name in frame.columns if name not in beside]
    return frame.select(F.lit(port).alias(PORT_COLUMN), F.struct(*columns).alias(struct_column(port)), *beside)
