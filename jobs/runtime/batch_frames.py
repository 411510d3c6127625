"""A job's graph over one batch, as Spark frames; nothing is computed before a sink reads one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel

from jobs.nodes import OperatorNode, SideOutputNode, SinkNode, SourceNode, TransformNode
from jobs.runtime.branches import joined, whole
from jobs.runtime.failures import user_code
from jobs.runtime.side_outputs import main_output, side_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from jobs.nodes import Node, NodeId
    from jobs.runtime.branches import Branches
    from jobs.topology import Topology


@dataclass(frozen=True, slots=True)
class OperatorInputs:
    """What an operator works on in a batch.

    Attributes:
        first: Its keyed stream.
        second: Its second keyed stream, if it has one.
        broadcast: Its broadcast stream, if it has one.
    """

    first: Branches
    second: Branches | None = None
    broadcast: DataFrame | None = None


class BatchFrames:
    """Builds the frames of one batch; `release` lets go of those that are kept because they are read more than once.

    Args:
        topology: The job.
        operator: Gives what an operator puts out, with all its outputs, from its inputs, which are built when it asks for them.
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
        """The frame of each sink's input, by its id, from the records of each source."""
        self._sources = sources
        return {sink.input: whole(self._stream(sink.input)) for sink in self._topology.sinks}

    def keep(self, frame: DataFrame) -> DataFrame:
        """Has a frame computed once only, however often it is read before `release`."""
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def release(self) -> None:
        for frame in self._kept:
            frame.unpersist()

    def _stream(self, node_id: NodeId) -> Branches:
        if node_id not in self._streams:
            node = self._topology.nodes[node_id]
            stream = self._built(node)
            if self._is_read_repeatedly(node) and node_id not in self._wires:
                stream = {origin: self.keep(frame) for origin, frame in stream.items()}
            self._streams[node_id] = stream
        return self._streams[node_id]

    def _built(self, node: Node) -> Branches:
        if isinstance(node, OperatorNode):
            return {node.id: main_output(self._wire(node)) if node.side_outputs else self._operator_frame(node)}
        if isinstance(node, SourceNode):
            return {node.id: self._sources[node.id]}
        if isinstance(node, TransformNode):
            with user_code():
                return {origin: node.apply(frame) for origin, frame in self._stream(node.input).items()}
        if isinstance(node, SideOutputNode):
            return {node.input: self._side_output(node)}
        return joined(self._stream(each) for each in node.inputs)

    def _wire(self, node: OperatorNode) -> DataFrame:
        """All outputs of an operator in one frame."""
        if node.id not in self._wires:
            self._wires[node.id] = self.keep(self._operator_frame(node))
        return self._wires[node.id]

    def _operator_frame(self, node: OperatorNode) -> DataFrame:
        return self._operator(node, lambda: self._inputs(node))

    def _inputs(self, node: OperatorNode) -> OperatorInputs:
        broadcast = None if node.broadcast is None else whole(self._stream(node.broadcast))
        second = None if node.second is None else self._stream(node.second.node)
        return OperatorInputs(self._stream(node.input), second, broadcast)

    def _side_output(self, node: SideOutputNode) -> DataFrame:
        operator = self._topology.nodes[node.input]
        assert isinstance(operator, OperatorNode), operator  # noqa: S101
        return side_output(self._wire(operator), node.tag, operator.side_outputs)

    def _is_read_repeatedly(self, node: Node) -> bool:
        readers = self._topology.consumers(node.id)
        return len(readers) > 1 or any(
            (isinstance(each, SinkNode) and each.sink.reads_repeatedly)
            or (isinstance(each, OperatorNode) and each.inputs.count(node.id) > 1)
            for each in readers
        )
