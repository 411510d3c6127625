"""Two streams that one function works on together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.broadcast import BroadcastProcess
from jobs.co_process import CoProcess
from jobs.output_schema import Schema, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobs.broadcast import KeyedBroadcastProcessFunction
    from jobs.co_process import KeyedCoProcessFunction
    from jobs.functions import OutputTag
    from jobs.keyed_stream import KeyedStream
    from jobs.nodes import NodeId, SecondInput
    from jobs.stream import DataStream
    from jobs.topology import TopologyBuilder
    from state.descriptors import MapStateDescriptor


class BroadcastStream:
    """A stream of which every subtask of an operator gets every record; see `DataStream.broadcast`."""

    def __init__(self, builder: TopologyBuilder, node: NodeId, descriptors: tuple[MapStateDescriptor, ...]) -> None:
        self.builder = builder
        self.node = node
        self.descriptors = descriptors


class ConnectedStreams:
    """Two keyed streams; see `KeyedStream.connect`."""

    def __init__(self, first: KeyedStream, second: SecondInput) -> None:
        self._first = first
        self._second = second

    def process(
        self, function: KeyedCoProcessFunction, *, output: Schema, side_outputs: Iterable[OutputTag] = ()
    ) -> DataStream:
        """Runs a function over the records of both, with one state a key. Give the result a `.uid(...)`.

        Args:
            function: Pickled into each subtask.
            output: Columns and types of the records that it puts out.
            side_outputs: What it may put records into besides.

        Raises:
            InvalidSchemaError: `output` is not a schema.
            InvalidKeyError: The keys of the streams have different types.
        """
        return self._first.connected(CoProcess(function), arrow_schema(output), side_outputs, second=self._second)


class BroadcastConnectedStream:
    """A keyed stream beside a broadcast one; see `KeyedStream.connect`."""

    def __init__(self, keyed: KeyedStream, broadcast: BroadcastStream) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    def process(
        self, function: KeyedBroadcastProcessFunction, *, output: Schema, side_outputs: Iterable[OutputTag] = ()
    ) -> DataStream:
        """Runs a function over the records of both. Give the result a `.uid(...)`.

        Args:
            function: Pickled into each subtask.
            output: Columns and types of the records that it puts out.
            side_outputs: What it may put records into besides.

        Raises:
            InvalidSchemaError: `output` is not a schema.
        """
        logic = BroadcastProcess(function, self._broadcast.descriptors)
        return self._keyed.connected(logic, arrow_schema(output), side_outputs, broadcast=self._broadcast.node)
