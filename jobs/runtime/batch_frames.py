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
        operator: Gives what an operator puts out, with all its outputs, from its inputs.
    """

    def __init__(self, topology: Topology, operator: Callable[[OperatorNode, OperatorInputs], DataFrame]) -> None:
        self._topology = topology
        self._operator = operator
        self._streams: dict[NodeId, Branches] = {}
        self._wires: dict[NodeId, DataFrame] = {}
        self._kept: list[DataFrame] = []

    def build(self, sources: Mapping[NodeId, DataFrame]) -> dict[NodeId, DataFrame]:
        """The frame of each sink's input, by its id, from the records of each source."""
        for node in self._topology.nodes:
            if not isinstance(node, SinkNode):
                self._streams[node.id] = self._stream(node, sources)
        return {sink.input: whole(self._streams[sink.input]) for sink in self._topology.sinks}

    def keep(self, frame: DataFrame) -> DataFrame:
        """Has a frame computed once only, however often it is read before `release`."""
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def release(self) -> None:
        for frame in self._kept:
            frame.unpersist()

    def _stream(self, node: Node, sources: Mapping[NodeId, DataFrame]) -> Branches:
        if isinstance(node, OperatorNode) and node.side_outputs:
            wire = self.keep(self._operator_frame(node))
            self._wires[node.id] = wire
            return {node.id: main_output(wire)}
        if isinstance(node, SourceNode):
            stream = {node.id: sources[node.id]}
        elif isinstance(node, TransformNode):
            with user_code():
                stream = {origin: node.apply(frame) for origin, frame in self._streams[node.input].items()}
        elif isinstance(node, OperatorNode):
            stream = {node.id: self._operator_frame(node)}
        elif isinstance(node, SideOutputNode):
            stream = {node.input: self._side_output(node)}
        else:
            stream = joined(self._streams[each] for each in node.inputs)
        return (
            {origin: self.keep(frame) for origin, frame in stream.items()} if self._is_read_repeatedly(node) else stream
        )

    def _operator_frame(self, node: OperatorNode) -> DataFrame:
        broadcast = None if node.broadcast is None else whole(self._streams[node.broadcast])
        second = None if node.second is None else self._streams[node.second.node]
        return self._operator(node, OperatorInputs(self._streams[node.input], second, broadcast))

    def _side_output(self, node: SideOutputNode) -> DataFrame:
        operator = self._topology.nodes[node.input]
        declared = operator.side_outputs if isinstance(operator, OperatorNode) else {}
        return side_output(self._wires[node.input], node.tag, declared)

    def _is_read_repeatedly(self, node: Node) -> bool:
        readers = self._topology.consumers(node.id)
        return len(readers) > 1 or any(
            (isinstance(each, SinkNode) and each.sink.reads_repeatedly)
            or (isinstance(each, OperatorNode) and each.inputs.count(node.id) > 1)
            for each in readers
        )
