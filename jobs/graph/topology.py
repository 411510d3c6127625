"""The graph of a job as its script declares it, without Spark.

A `TopologyBuilder` collects nodes while the script runs; `build` checks them and returns the `Topology` for the
runtime.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.identifiers import OperatorUid
from keyscale.state.doors.keyed import RocksDbSettings

from ..errors import (
    DuplicateUidError,
    InvalidTopologyError,
    InvalidUidError,
    MissingUidError,
    NoSinkError,
)
from ..functions.process_function import OutputTag
from ..operators.failures import script_place, with_place
from .nodes import (
    ONLY_SOURCE_UID,
    Arrival,
    Node,
    NodeId,
    OperatorNode,
    RecordOrigin,
    SecondInput,
    SideOutputNode,
    SinkNode,
    SourceNode,
    Timestamps,
    TimestampsNode,
    TransformNode,
    UnionNode,
)
from .picklable import check_picklable
from .schemas import check_column, check_keys_alike, check_schema, key_schema, union_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from traceback import FrameSummary
    from typing import TypeAlias

    from pyspark.sql import DataFrame

    from ..functions.subtask_info import FailedRecordPolicy
    from ..operators.operator_contract import OperatorLogic
    from ..sinks.sink import Sink

    Place: TypeAlias = Sequence[FrameSummary]

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # a uid becomes part of paths in object stores


@dataclass(frozen=True, slots=True)
class Topology:
    """A job's checked graph.

    Attributes:
        nodes: Every node comes after its inputs.
        rocksdb: Configures the stores of the job's state.
        batch_interval_ms: The minimum time between the starts of two batches, as set by the script.
    """

    nodes: tuple[Node, ...]
    rocksdb: RocksDbSettings = field(default_factory=RocksDbSettings)
    batch_interval_ms: int = 0

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, OperatorNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    def schema(self, node: NodeId) -> pa.Schema:
        """Returns the schema of the stream that a node emits."""
        at = self.nodes[node]
        if isinstance(at, SinkNode):
            raise InvalidTopologyError("a sink has no output stream")
        return at.schema

    def consumers(self, node: NodeId) -> tuple[Node, ...]:
        """Returns the nodes that read the output of `node`."""
        return tuple(reader for reader in self.nodes if node in reader.inputs)

    def origins(self, node: NodeId) -> tuple[RecordOrigin, ...]:
        """Returns the sources and operators that `node` gets its records from.

        A source or operator is its own origin. Stateless steps on the way do not count.
        """
        at = self.nodes[node]
        if isinstance(at, SourceNode | OperatorNode):
            return (RecordOrigin(at),)
        found: dict[NodeId, RecordOrigin] = {}
        for origin in (origin for each in at.inputs for origin in self.origins(each)):
            known = found.get(origin.node.id)
            found[origin.node.id] = origin if known is None else known.joined(origin)
        if isinstance(at, TimestampsNode):
            return tuple(RecordOrigin(origin.node, at.timestamps) for origin in found.values())
        return tuple(found.values())

    def arrivals(self, operator: OperatorNode) -> tuple[Arrival, ...]:
        """Returns the arrivals at an operator; the first input comes first."""
        first = (operator.timestamp_column, operator.out_of_orderness_ms)
        arrivals = [
            Arrival(origin, 0, *first, *self._split_columns(origin, operator.input, operator.input_schema))
            for origin in self.origins(operator.input)
        ]
        if (second := operator.second) is not None:
            times = (second.timestamp_column, second.out_of_orderness_ms)
            arrivals += [
                Arrival(origin, 1, *times, *self._split_columns(origin, second.node, second.schema))
                for origin in self.origins(second.node)
            ]
        return tuple(arrivals)

    def carries_split(self, node: NodeId) -> bool:
        """Returns whether a node's frames have the hidden column.

        The column holds a record's split.
        """
        at = self.nodes[node]
        if isinstance(at, SourceNode | TransformNode):
            return at.carries_split
        return isinstance(at, TimestampsNode | UnionNode) and any(map(self.carries_split, at.inputs))

    def _split_columns(self, origin: RecordOrigin, node: NodeId, schema: pa.Schema) -> tuple[tuple[str, ...], bool]:
        """Returns the columns that identify the splits of an origin.

        Returns none if a transform has lost one of the columns on the way. Also returns whether the records have their
        split in the hidden column instead.
        """
        columns = () if origin.timestamps is None else origin.timestamps.split_columns
        if set(columns) <= set(schema.names):
            return columns, False
        is_carried = isinstance(origin.node, SourceNode) and columns == origin.node.split_columns
        return (columns, True) if is_carried and self.carries_split(node) else ((), False)

    def follows_sources_alone(self, operator: OperatorNode) -> bool:
        """Returns whether all records that arrive at `operator` come from sources."""
        return all(isinstance(origin.node, SourceNode) for each in operator.inputs for origin in self.origins(each))

    def meets_others(self, node: NodeId) -> bool:
        """Returns whether the output of `node` merges with other records.

        Only merges before the next operator count.
        """
        for reader in self.consumers(node):
            if isinstance(reader, UnionNode) or (isinstance(reader, OperatorNode) and reader.second is not None):
                return True
            if not isinstance(reader, OperatorNode | SinkNode) and self.meets_others(reader.id):
                return True
        return False

    def times_passed_on(self, node: NodeId, source: NodeId) -> int:
        """Returns how often `node` emits each record of a source.

        Returns 0 if the number is not the same for all records.
        """
        at = self.nodes[node]
        if isinstance(at, SourceNode):
            return int(at.id == source)
        if not isinstance(at, TimestampsNode | UnionNode):
            return 0
        ways = [each for each in at.inputs if any(origin.node.id == source for origin in self.origins(each))]
        times = [self.times_passed_on(each, source) for each in ways]
        return sum(times) if all(times) else 0

    def reader_of_all(self) -> OperatorNode | None:
        """Returns the operator that is the only reader of the only source.

        Returns None if there is no such operator.
        """
        node: Node = self.sources[0]
        while len(self.sources) == 1 and len(readers := self.consumers(node.id)) == 1:
            node = readers[0]
            if isinstance(node, OperatorNode):
                return node if len(node.inputs) == 1 else None
            if not isinstance(node, TimestampsNode):
                return None
        return None

    def operators_before(self, node: NodeId) -> tuple[OperatorNode, ...]:
        """Returns the operators among the origins of `node`."""
        return tuple(origin.node for origin in self.origins(node) if isinstance(origin.node, OperatorNode))


@dataclass(slots=True)
class TopologyBuilder:
    """Collects a job's nodes while its script runs.

    Operators and sinks get their uids after they are added.
    """

    rocksdb: RocksDbSettings = field(default_factory=RocksDbSettings)
    batch_interval_ms: int = 0
    failed_records: FailedRecordPolicy = "fail"
    _nodes: list[Node] = field(default_factory=list)
    _places: dict[NodeId, Place] = field(default_factory=dict)

    def add_source(
        self,
        frame: DataFrame,
        schema: pa.Schema,
        split_columns: tuple[str, ...] = (),
        *,
        carries_split: bool = False,
    ) -> NodeId:
        check_schema(schema, "the source")
        node = SourceNode(self._next_id(), frame, schema, split_columns=split_columns, carries_split=carries_split)
        return self._add(node)

    def add_transform(
        self,
        source: NodeId,
        apply: Callable[[DataFrame], DataFrame],
        schema: pa.Schema,
        *,
        reads_once: bool = True,
        carries_split: bool = False,
    ) -> NodeId:
        check_schema(schema, "a transform's result")
        return self._add(TransformNode(self._next_id(), source, apply, schema, reads_once, carries_split))

    def add_timestamps(self, source: NodeId, timestamps: Timestamps, *, carries_split: bool = False) -> NodeId:
        """Adds the assignment of event times to the stream of `source`.

        With `carries_split`, the stream may lack the columns of the split.

        Raises:
            UnknownColumnError: The stream has no such column.
        """
        schema = self.schema(source)
        check_column(schema, timestamps.column, "timestamp")
        for name in () if carries_split else timestamps.split_columns:
            check_column(schema, name, "split")
        return self._add(TimestampsNode(self._next_id(), source, timestamps, schema))

    def add_union(self, streams: Sequence[NodeId]) -> NodeId:
        """Adds the union of several streams.

        Raises:
            UnionSchemaError: Their columns differ in name, type or order.
        """
        return self._add(
            UnionNode(self._next_id(), tuple(streams), union_schema([self.schema(each) for each in streams]))
        )

    def add_operator(
        self,
        source: NodeId,
        *,
        key_columns: tuple[str, ...],
        logic: OperatorLogic,
        schema: pa.Schema,
        timestamp_column: str | None,
        out_of_orderness_ms: int = 0,
        max_ahead_ms: int | None = None,
        side_outputs: Iterable[OutputTag] = (),
        broadcast: NodeId | None = None,
        second: SecondInput | None = None,
    ) -> NodeId:
        """Adds a keyed operator over the stream of `source`.

        `schema` is the schema of its main output.
        """
        check_schema(schema, "an operator's output")
        tags = list(side_outputs)
        for tag in tags:
            check_schema(tag.schema, f"side output {tag.name!r}")
        if len({tag.name for tag in tags}) < len(tags):
            raise InvalidTopologyError("two side outputs of an operator have the same name")
        input_schema = self.schema(source)
        if second is not None:
            check_keys_alike(key_schema(input_schema, key_columns), key_schema(second.schema, second.key_columns))
        node = OperatorNode(
            id=self._next_id(),
            input=source,
            uid=OperatorUid(""),
            key_columns=key_columns,
            key_schema=logic.stored_key(key_schema(input_schema, key_columns)),
            input_schema=input_schema,
            schema=schema,
            timestamp_column=timestamp_column,
            logic=logic,
            out_of_orderness_ms=out_of_orderness_ms,
            max_ahead_ms=max_ahead_ms,
            side_outputs={tag.name: tag.schema for tag in tags},
            broadcast=broadcast,
            broadcast_schema=None if broadcast is None else self.schema(broadcast),
            second=second,
        )
        return self._add(node)

    def add_side_output(self, operator: NodeId, tag: OutputTag) -> NodeId:
        """Adds the stream of a side output.

        Raises:
            InvalidTopologyError: `operator` is not an operator, or does not declare this side output with this schema.
        """
        node = self._nodes[operator]
        if not isinstance(node, OperatorNode) or node.side_outputs.get(tag.name) != tag.schema:
            raise InvalidTopologyError(
                f"the function declares no side output {tag.name!r}: name it in side_outputs=[...]"
            )
        return self._add(SideOutputNode(self._next_id(), operator, tag.name, tag.schema))

    def add_dead_letters(self, operator: NodeId) -> NodeId:
        """Adds the stream of records on which an operator's function failed.

        Raises as `add_side_output` does.
        """
        node = self._nodes[operator]
        known = node.input_schema if isinstance(node, OperatorNode) else self.schema(operator)
        return self.add_side_output(operator, dead_letter_tag(known))

    def add_sink(self, source: NodeId, sink: Sink) -> NodeId:
        return self._add(SinkNode(self._next_id(), source, OperatorUid(""), sink))

    def name(self, node_id: NodeId, uid: str) -> None:
        """Gives a source, an operator or a sink its uid.

        Raises:
            InvalidUidError: The uid cannot be part of a path.
            InvalidTopologyError: The node is something else, or already has a uid.
        """
        node = self._nodes[node_id]
        while isinstance(node, TimestampsNode):
            node = self._nodes[node.input]
        if not _UID.fullmatch(uid):
            raise InvalidUidError(
                f"the uid {uid!r} is not 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit"
            )
        if not isinstance(node, SourceNode | OperatorNode | SinkNode):
            raise InvalidTopologyError(
                f"the uid {uid!r} is on a stream that is not a source, a stateful operator's output or a sink"
            )
        if node.uid:
            raise InvalidTopologyError(f"the source, operator or sink {node.uid!r} cannot also be {uid!r}")
        self._nodes[node.id] = replace(node, uid=OperatorUid(uid))

    def schema(self, node_id: NodeId) -> pa.Schema:
        """Returns the schema of the stream that a node emits."""
        node = self._nodes[node_id]
        if isinstance(node, SinkNode):
            raise InvalidTopologyError("a sink has no output stream")
        return node.schema

    def build(self) -> Topology:
        """Checks the whole graph and returns it.

        Raises:
            InvalidTopologyError: The graph is invalid; the subclass and the message say what to correct.
        """
        sources = [node for node in self._nodes if isinstance(node, SourceNode)]
        if not sources:
            raise InvalidTopologyError("the job has no source: see env.stream(...)")
        if len(sources) == 1 and not sources[0].uid:
            self._nodes[sources[0].id] = replace(sources[0], uid=ONLY_SOURCE_UID)
        nodes = (
            replace(node, failed_records=self.failed_records) if isinstance(node, OperatorNode) else node
            for node in self._nodes
        )
        topology = Topology(tuple(nodes), self.rocksdb, self.batch_interval_ms)
        if not topology.sinks:
            raise NoSinkError("the job has no sink")
        _check_uids(topology, self._places)
        for operator in topology.operators:
            if not any(isinstance(node, SinkNode) for node in _downstream(topology, operator.id)):
                error = NoSinkError(f"the output of operator {operator.uid!r} reaches no sink")
                raise with_place(error, self._places[operator.id])
        for operator in topology.operators:
            try:
                check_picklable(operator.logic, f"operator {operator.uid!r}")
            except KeyscaleError as error:
                raise with_place(error, self._places[operator.id]) from None
        return topology

    def _next_id(self) -> NodeId:
        return NodeId(len(self._nodes))

    def _add(self, node: Node) -> NodeId:
        self._nodes.append(node)
        self._places[node.id] = script_place()
        return node.id


def dead_letter_tag(schema: pa.Schema) -> OutputTag:
    """Returns the side output for failed records of a stream.

    Its columns are the stream's columns, and the exception's type and message.
    """
    return OutputTag("dead-letters", pa.schema([*schema, pa.field("error", pa.string())]))


def _check_uids(topology: Topology, places: Mapping[NodeId, Place]) -> None:
    seen: set[str] = set()
    several: tuple[Node, ...] = topology.sources if len(topology.sources) > 1 else ()
    for node in (*several, *topology.operators, *topology.sinks):
        assert isinstance(node, SourceNode | OperatorNode | SinkNode)  # noqa: S101 - the three kinds above
        if not node.uid:
            raise with_place(MissingUidError(f"{_described(node)} has no uid"), places[node.id])
        if node.uid in seen:
            raise with_place(DuplicateUidError(f"the uid {node.uid!r} is used twice"), places[node.id])
        seen.add(node.uid)


def _described(node: SourceNode | OperatorNode | SinkNode) -> str:
    if isinstance(node, OperatorNode):
        return f"the operator keyed by {', '.join(node.key_columns)}"
    if isinstance(node, SourceNode):
        return f"one of several sources, with the columns {', '.join(node.schema.names)},"
    return "a sink"


def _downstream(topology: Topology, node: NodeId) -> Iterator[Node]:
    for consumer in topology.consumers(node):
        yield consumer
        yield from _downstream(topology, consumer.id)
