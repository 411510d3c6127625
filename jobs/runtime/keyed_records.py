"""An operator's keyed records, each where the subtask that its key belongs to is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.runtime.branches import tagged, tags_of, whole
from jobs.runtime.ports import packed
from jobs.runtime.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from jobs.nodes import OperatorNode
    from jobs.runtime.affinity import Anchor
    from jobs.runtime.batch_frames import OperatorInputs
    from jobs.runtime.branches import Branches
    from jobs.topology import Topology
    from state.hashing import HashId
    from state.identifiers import OperatorUid


class KeyedRecords:
    """Moves the records of an attempt's operators to their subtasks, batch by batch.

    Args:
        topology: The job.
        anchor: Where the subtasks are.
        max_parallelism: Key groups.
        hash_id: How keys become key groups.

    Attributes:
        keyed_by_query: The operator whose records `of_query` moves, if it moves any.
    """

    def __init__(self, topology: Topology, anchor: Anchor, *, max_parallelism: int, hash_id: HashId) -> None:
        self._topology = topology
        self._anchor = anchor
        self.keyed_by_query = topology.reader_of_all()
        self._none: dict[OperatorUid, DataFrame] = {}
        self._routings: dict[OperatorUid, tuple[Routing, ...]] = {}
        for node in topology.operators:
            keys = [node.key_columns, *([] if node.second is None else [node.second.key_columns])]
            self._routings[node.uid] = tuple(
                Routing.of(
                    key_columns, max_parallelism=max_parallelism, parallelism=anchor.parallelism, hash_id=hash_id
                )
                for key_columns in keys
            )

    def of_query(self, stream: DataFrame) -> DataFrame:
        """What Spark's query reads: the sources' records, and where they can be, already keyed.

        Spark analyses that once for all batches: to add the same in a batch takes it as long as to plan the rest of it.
        """
        node = self.keyed_by_query
        return stream if node is None else self._anchor.hold(self._routings[node.uid][0].mark(stream))

    def moved(self, node: OperatorNode, inputs: OperatorInputs) -> DataFrame:
        """An operator's records in a batch."""
        routed = self._routed(node, inputs.first, 0)
        if inputs.second is not None:
            routed = packed(routed, self._routed(node, inputs.second, 1))
        return self._anchor.hold(routed)

    def none(self, node: OperatorNode, inputs: Callable[[], OperatorInputs]) -> DataFrame:
        """What `moved` gives for an operator in which nothing comes in: spares moving no rows, and writing down how."""
        if node.uid not in self._none:
            self._none[node.uid] = self._anchor.hold_none(self.moved(node, inputs()).schema)
        return self._none[node.uid]

    def _routed(self, node: OperatorNode, branches: Branches, port: int) -> DataFrame:
        """All records of one input, each with its key group and its subtask."""
        arrivals = self._topology.arrivals(node)
        frame = tagged(branches, arrivals, port) if tags_of(arrivals) else whole(branches)
        return self._routings[node.uid][port].mark(frame)
