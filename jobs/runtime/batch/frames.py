"""A job's graph over one batch, as Spark frames.

Nothing is computed before a sink reads a frame. A stream within a batch is a frame per source or operator that its
records come from. These branches stay separate up to the next operator, because each branch has its own watermark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from ...graph.nodes import OperatorNode, SideOutputNode, SinkNode, SourceNode, TransformNode, UnionNode
from ...operators.failures import user_code
from ...operators.operator_contract import ORIGIN_COLUMN, SPLIT_COLUMN
from ..executor.side_outputs import main_output, side_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from ...graph.nodes import Arrival, Node, NodeId
    from ...graph.topology import Topology

Branches: TypeAlias = "dict[NodeId, DataFrame]"
"""Frames of one schema by the node that their records come from."""


@dataclass(frozen=True, slots=True)
class OperatorInputs:
    """An operator's input in a batch.

    Attributes:
        first: The keyed stream.
        second: The second keyed stream, if any.
        broadcast: The broadcast stream, if any.
    """

    first: Branches
    second: Branches | None = None
    broadcast: DataFrame | None = None


class BatchFrames:
    """Builds the frames of one batch.

    Args:
        topology: The job.
        operator: Returns the frame of all outputs of an operator; gets a function that builds its inputs.
    """

    def __init__(
        self, topology: Topology, operator: Callable[[OperatorNode, Callable[[], OperatorInputs]], DataFrame]
    ) -> None:
        self._topology = topology
        self._operator = operator
        self._sources: Mapping[NodeId, DataFrame] = {}
        self._streams: dict[NodeId, Branches] = {}
        self._wires: dict[NodeId, DataFrame] = {}
        self._kept: list[DataFrame] = []

    def build(self, sources: Mapping[NodeId, DataFrame]) -> dict[NodeId, DataFrame]:
        """Returns the frame of each sink's input, by the input's id.

        `sources` are the records of each source.
        """
        self._sources = sources
        return {sink.input: self._apart(self._without_split(sink.input)) for sink in self._topology.sinks}

    def keep(self, frame: DataFrame) -> DataFrame:
        """Makes Spark compute a frame only once until `release`."""
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def _apart(self, frame: DataFrame) -> DataFrame:
        """Returns the same rows in a frame that sinks may drop.

        `unpersist` on a kept frame would take it from its other readers. Spark treats `select("*")` as the same frame.
        """
        return frame.where("true") if any(frame is kept for kept in self._kept) else frame

    def release(self) -> None:
        """Drops the kept frames."""
        for frame in self._kept:
            frame.unpersist()

    def _stream(self, node_id: NodeId) -> Branches:
        if node_id not in self._streams:
            node = self._topology.nodes[node_id]
            stream = self._built(node)
            is_read_partly = self._is_read_partly(node)
            if (is_read_partly or self._is_read_repeatedly(node)) and node_id not in self._wires:
                stream = {origin: self.keep(frame) for origin, frame in stream.items()}
            if is_read_partly:
                for frame in stream.values():
                    frame.count()  # computes all rows, so that every subtask of the preceding operator runs once
            self._streams[node_id] = stream
        return self._streams[node_id]

    def _built(self, node: Node) -> Branches:
        if isinstance(node, OperatorNode):
            return {node.id: main_output(self._wire(node)) if node.side_outputs else self._alone(node)}
        if isinstance(node, SourceNode):
            return {node.id: self._sources[node.id]}
        if isinstance(node, TransformNode):
            with user_code():
                return {origin: node.apply(frame) for origin, frame in self._stream(node.input).items()}
        if isinstance(node, SideOutputNode):
            return {node.input: self._side_output(node)}
        if isinstance(node, UnionNode) and self._topology.carries_split(node.id):
            return joined(self._with_split(each) for each in node.inputs)
        return joined(self._stream(each) for each in node.inputs)

    def _with_split(self, node_id: NodeId) -> Branches:
        """Returns a stream with the hidden column last.

        Unknown splits are null.
        """
        is_carried = self._topology.carries_split(node_id)
        split = F.col(SPLIT_COLUMN) if is_carried else F.lit(None).cast("string").alias(SPLIT_COLUMN)
        node = self._topology.nodes[node_id]
        assert not isinstance(node, SinkNode)  # noqa: S101 - nothing reads a sink
        names = ["`" + name.replace("`", "``") + "`" for name in node.schema.names]
        return {origin: frame.select(*names, split) for origin, frame in self._stream(node_id).items()}

    def _without_split(self, node_id: NodeId) -> DataFrame:
        """Returns a stream as a sink or a broadcast sees it."""
        frame = whole(self._stream(node_id))
        return frame.drop(SPLIT_COLUMN) if self._topology.carries_split(node_id) else frame

    def _wire(self, node: OperatorNode) -> DataFrame:
        """Returns all outputs of an operator in one frame."""
        if node.id not in self._wires:
            self._wires[node.id] = self.keep(self._alone(node))
        return self._wires[node.id]

    def _alone(self, node: OperatorNode) -> DataFrame:
        """Returns the frame of an operator, computed separately if needed.

        A separate Spark job is needed if the frame meets other frames in a later job.

        In a stage that combines several frames, task numbers continue from one frame to the next. A subtask is its
        task's number, so the operators of later frames would run with the numbers of other subtasks.
        """
        frame = self._operator_frame(node)
        if self._topology.meets_others(node.id):
            self.keep(frame).count()
        return frame

    def _operator_frame(self, node: OperatorNode) -> DataFrame:
        return self._operator(node, lambda: self._inputs(node))

    def _inputs(self, node: OperatorNode) -> OperatorInputs:
        broadcast = None if node.broadcast is None else self._without_split(node.broadcast)
        second = None if node.second is None else self._stream(node.second.node)
        return OperatorInputs(self._stream(node.input), second, broadcast)

    def _side_output(self, node: SideOutputNode) -> DataFrame:
        operator = self._topology.nodes[node.input]
        assert isinstance(operator, OperatorNode), operator  # noqa: S101
        return side_output(self._wire(operator), node.tag, operator.side_outputs)

    def _is_read_partly(self, node: Node) -> bool:
        """Returns whether a reader may read an operator's records partly.

        Such a reader may skip records, or compute several partitions in one task.
        """
        return bool(self._topology.operators_before(node.id)) and any(
            (isinstance(each, SinkNode) and each.sink.reads_repeatedly)
            or (isinstance(each, TransformNode) and not each.reads_once)
            for each in self._topology.consumers(node.id)
        )

    def _is_read_repeatedly(self, node: Node) -> bool:
        readers = self._topology.consumers(node.id)
        return len(readers) > 1 or any(
            (isinstance(each, SinkNode) and each.sink.reads_repeatedly) or each.inputs.count(node.id) > 1
            for each in readers
        )


def joined(streams: Iterable[Branches]) -> Branches:
    """Joins several streams into one."""
    branches: Branches = {}
    for stream in streams:
        for origin, frame in stream.items():
            branches[origin] = branches[origin].union(frame) if origin in branches else frame
    return branches


def whole(branches: Branches) -> DataFrame:
    """Returns all records of a stream in one frame."""
    return reduce(lambda left, right: left.union(right), branches.values())


def tagged(branches: Branches, arrivals: Sequence[Arrival], port: int) -> DataFrame:
    """Returns all records of one input, with the index of their origin.

    The index refers to the operator's arrivals.
    """
    places = {each.origin.node.id: place for place, each in enumerate(arrivals) if each.port == port}
    return whole({origin: frame.withColumn(ORIGIN_COLUMN, F.lit(places[origin])) for origin, frame in branches.items()})


def tags_of(arrivals: Sequence[Arrival]) -> tuple[str, ...]:
    """Returns the arrival names that distinguish an operator's records.

    Returns none for a single arrival.
    """
    return tuple(each.name for each in arrivals) if len(arrivals) > 1 else ()
