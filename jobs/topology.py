"""The graph of a job as its script declares it: values and checks, no Spark.

A `TopologyBuilder` collects nodes while the script runs; `build` checks them and gives the `Topology` that the runtime runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobs.errors import (
    DuplicateUidError,
    InvalidKeyError,
    InvalidSchemaError,
    InvalidTopologyError,
    InvalidUidError,
    MissingUidError,
    NoSinkError,
    UnknownColumnError,
)
from jobs.functions import OutputTag
from jobs.nodes import (
    ONLY_SOURCE_UID,
    Arrival,
    Node,
    NodeId,
    OperatorNode,
    Origin,
    SecondInput,
    SideOutputNode,
    SinkNode,
    SourceNode,
    Timestamps,
    TimestampsNode,
    TransformNode,
    UnionNode,
)
from jobs.union_schema import union_schema
from state.identifiers import OperatorUid
from state.settings import RocksDbSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from jobs.runtime.body import OperatorLogic
    from jobs.sinks import Sink

__all__ = [
    "NodeId",
    "OperatorNode",
    "SideOutputNode",
    "SinkNode",
    "SourceNode",
    "Timestamps",
    "Topology",
    "TopologyBuilder",
    "TransformNode",
    "check_column",
    "check_keys_alike",
    "check_schema",
    "dead_letter_tag",
    "key_schema",
]

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # it is a part of paths in every object store
_RESERVED_PREFIX = "__"  # columns that the runtime adds


@dataclass(frozen=True, slots=True)
class Topology:
    """A job's checked graph; every node comes after its inputs. `rocksdb` sets up the stores of its state."""

    nodes: tuple[Node, ...]
    rocksdb: RocksDbSettings = field(default_factory=RocksDbSettings)

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, OperatorNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    def consumers(self, node: NodeId) -> tuple[Node, ...]:
        """The nodes that read the output of `node`."""
        return tuple(reader for reader in self.nodes if node in reader.inputs)

    def origins(self, node: NodeId) -> tuple[Origin, ...]:
        """The sources and operators whose records, perhaps transformed, `node` puts out; itself if it is one of them."""
        at = self.nodes[node]
        if isinstance(at, SourceNode | OperatorNode):
            return (Origin(at),)
        found: dict[NodeId, Origin] = {}
        for origin in (origin for each in at.inputs for origin in self.origins(each)):
            known = found.get(origin.node.id)
            found[origin.node.id] = origin if known is None else known.joined(origin)
        if isinstance(at, TimestampsNode):
            return tuple(Origin(origin.node, at.timestamps) for origin in found.values())
        return tuple(found.values())

    def arrivals(self, operator: OperatorNode) -> tuple[Arrival, ...]:
        """Whose records come in at an operator, first those of its first input."""
        first = (operator.timestamp_column, operator.out_of_orderness_ms)
        arrivals = [Arrival(origin, 0, *first) for origin in self.origins(operator.input)]
        if (second := operator.second) is not None:
            times = (second.timestamp_column, second.out_of_orderness_ms)
            arrivals += [Arrival(origin, 1, *times) for origin in self.origins(second.node)]
        return tuple(arrivals)

    def follows_sources_alone(self, operator: OperatorNode) -> bool:
        """Whether nothing that operators put out comes in at one."""
        return all(isinstance(origin.node, SourceNode) for each in operator.inputs for origin in self.origins(each))

    def reader_of_all(self) -> OperatorNode | None:
        """The operator that alone reads the records of the job's only source, as they come; None if there is none such."""
        node: Node = self.sources[0]
        while len(self.sources) == 1 and len(readers := self.consumers(node.id)) == 1:
            node = readers[0]
            if isinstance(node, OperatorNode):
                return node if len(node.inputs) == 1 else None
            if not isinstance(node, TimestampsNode):
                return None
        return None

    def operators_before(self, node: NodeId) -> tuple[OperatorNode, ...]:
        """The operators among the origins of what `node` puts out."""
        return tuple(origin.node for origin in self.origins(node) if isinstance(origin.node, OperatorNode))


@dataclass(slots=True)
class TopologyBuilder:
    """Collects a job's nodes while its script runs. Operators and sinks get their uids after they were added."""

    rocksdb: RocksDbSettings = field(default_factory=RocksDbSettings)
    _nodes: list[Node] = field(default_factory=list)

    def add_source(self, frame: DataFrame, schema: pa.Schema) -> NodeId:
        check_schema(schema, "the source")
        return self._add(SourceNode(self._next_id(), frame, schema))

    def add_transform(self, source: NodeId, apply: Callable[[DataFrame], DataFrame], schema: pa.Schema) -> NodeId:
        check_schema(schema, "a transform's result")
        return self._add(TransformNode(self._next_id(), source, apply, schema))

    def add_timestamps(self, source: NodeId, timestamps: Timestamps) -> NodeId:
        """Adds the stream of `source` with event times.

        Raises:
            UnknownColumnError: It has no such column.
        """
        schema = self.schema(source)
        check_column(schema, timestamps.column, "timestamp")
        return self._add(TimestampsNode(self._next_id(), source, timestamps, schema))

    def add_union(self, streams: Sequence[NodeId]) -> NodeId:
        """Adds several streams as one.

        Raises:
            UnionSchemaError: They have not the same columns, in name, type and order.
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
        side_outputs: Iterable[OutputTag] = (),
        broadcast: NodeId | None = None,
        second: SecondInput | None = None,
    ) -> NodeId:
        """Adds a keyed operator over the stream of `source`; `schema` is that of its main output."""
        check_schema(schema, "an operator's output")
        tags = list(side_outputs)
        for tag in tags:
            check_schema(tag.schema, f"side output {tag.name!r}")
        if len({tag.name for tag in tags}) < len(tags):
            message = "two side outputs of an operator have one name"
            raise InvalidTopologyError(message)
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
            side_outputs={tag.name: tag.schema for tag in tags},
            broadcast=broadcast,
            broadcast_schema=None if broadcast is None else self.schema(broadcast),
            second=second,
        )
        return self._add(node)

    def add_side_output(self, operator: NodeId, tag: OutputTag) -> NodeId:
        """Adds the stream of a side output.

        Raises:
            InvalidTopologyError: `operator` is none, or does not declare the side output as it is here.
        """
        node = self._nodes[operator]
        if not isinstance(node, OperatorNode) or node.side_outputs.get(tag.name) != tag.schema:
            message = f"there is no side output {tag.name!r} here: declare it where the function is used"
            raise InvalidTopologyError(message)
        return self._add(SideOutputNode(self._next_id(), operator, tag.name, tag.schema))

    def add_dead_letters(self, operator: NodeId) -> NodeId:
        """Adds the stream of the records that an operator's function has failed on. Raises as `add_side_output` does."""
        node = self._nodes[operator]
        known = node.input_schema if isinstance(node, OperatorNode) else self.schema(operator)
        return self.add_side_output(operator, dead_letter_tag(known))

    def add_sink(self, source: NodeId, sink: Sink) -> NodeId:
        return self._add(SinkNode(self._next_id(), source, OperatorUid(""), sink))

    def name(self, node_id: NodeId, uid: str) -> None:
        """Gives a source, an operator or a sink its uid.

        Raises:
            InvalidUidError: The uid cannot be part of a path.
            InvalidTopologyError: The node is none of them, or has a uid already.
        """
        node = self._nodes[node_id]
        while isinstance(node, TimestampsNode):
            node = self._nodes[node.input]
        if not _UID.fullmatch(uid):
            message = (
                f"the uid {uid!r} is not 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit"
            )
            raise InvalidUidError(message)
        if not isinstance(node, SourceNode | OperatorNode | SinkNode):
            message = (
                f"the uid {uid!r} is on a stream that is neither a source, nor a stateful operator's output, nor a sink"
            )
            raise InvalidTopologyError(message)
        if node.uid:
            message = f"the source, operator or sink {node.uid!r} cannot also be {uid!r}"
            raise InvalidTopologyError(message)
        self._nodes[node.id] = replace(node, uid=OperatorUid(uid))

    def schema(self, node_id: NodeId) -> pa.Schema:
        """The schema of the stream that a node puts out."""
        node = self._nodes[node_id]
        if isinstance(node, SinkNode):
            message = "a sink puts out no stream"
            raise InvalidTopologyError(message)
        return node.schema

    def build(self) -> Topology:
        """Checks the whole graph.

        Raises:
            InvalidTopologyError: One of its kinds, that says what to correct.
        """
        sources = [node for node in self._nodes if isinstance(node, SourceNode)]
        if not sources:
            message = "the job has no source: see env.stream(...)"
            raise InvalidTopologyError(message)
        if len(sources) == 1 and not sources[0].uid:
            self._nodes[sources[0].id] = replace(sources[0], uid=ONLY_SOURCE_UID)
        topology = Topology(tuple(self._nodes), self.rocksdb)
        if not topology.sinks:
            message = "the job has no sink"
            raise NoSinkError(message)
        _check_uids(topology)
        for operator in topology.operators:
            if not any(isinstance(node, SinkNode) for node in _downstream(topology, operator.id)):
                message = f"the output of operator {operator.uid!r} reaches no sink"
                raise NoSinkError(message)
        return topology

    def _next_id(self) -> NodeId:
        return NodeId(len(self._nodes))

    def _add(self, node: Node) -> NodeId:
        self._nodes.append(node)
        return node.id


def dead_letter_tag(schema: pa.Schema) -> OutputTag:
    """The side output of failed records of a stream: its columns, and what was raised, without data."""
    return OutputTag("dead-letters", pa.schema([*schema, pa.field("error", pa.string())]))


def check_schema(schema: pa.Schema, of_what: str) -> None:
    """Refuses schemas that cannot be a stream's: empty, with a name twice, or with a reserved name."""
    if not schema.names:
        message = f"{of_what} has no columns"
        raise InvalidSchemaError(message)
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        message = f"{of_what} has more than one column named {', '.join(doubled)}"
        raise InvalidSchemaError(message)
    reserved = [name for name in schema.names if name.startswith(_RESERVED_PREFIX)]
    if reserved:
        message = f"{of_what} has columns named {', '.join(reserved)}; names that begin with '__' are the runtime's"
        raise InvalidSchemaError(message)


def key_schema(schema: pa.Schema, key_columns: tuple[str, ...]) -> pa.Schema:
    """The key's own schema: the named columns, each nullable.

    Raises:
        UnknownColumnError: A column is not there.
        InvalidKeyError: No column, one twice, or a type that has no one order.
    """
    if not key_columns or len(set(key_columns)) != len(key_columns):
        message = f"a key needs one or more different columns, not ({', '.join(key_columns)})"
        raise InvalidKeyError(message)
    for name in key_columns:
        check_column(schema, name, "key")
        if _holds_map(schema.field(name).type):
            message = f"key column {name!r} has type {schema.field(name).type}, which holds a map"
            raise InvalidKeyError(message)
    return pa.schema([pa.field(name, schema.field(name).type) for name in key_columns])


def check_keys_alike(first: pa.Schema, second: pa.Schema) -> None:
    """Raises InvalidKeyError if the keys of two streams are not of the same types: equal keys would not meet."""
    if first.types != second.types:
        kinds = " and ".join(f"({', '.join(map(str, keys.types))})" for keys in (first, second))
        message = f"the keys of two connected streams have the types {kinds}, and need the same"
        raise InvalidKeyError(message)


def check_column(schema: pa.Schema, name: str, role: str) -> None:
    """Raises UnknownColumnError if `name`, wanted as `role`, is not a column of `schema`."""
    if name not in schema.names:
        message = f"{role} column {name!r} is not in the stream, which has: {', '.join(schema.names)}"
        raise UnknownColumnError(message)


def _holds_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_holds_map(kind.field(at).type) for at in range(kind.num_fields))


def _check_uids(topology: Topology) -> None:
    seen: set[str] = set()
    several: tuple[Node, ...] = topology.sources if len(topology.sources) > 1 else ()
    for node in (*several, *topology.operators, *topology.sinks):
        assert isinstance(node, SourceNode | OperatorNode | SinkNode)  # noqa: S101 - as just put together
        if not node.uid:
            message = f"{_described(node)} has no uid"
            raise MissingUidError(message)
        if node.uid in seen:
            message = f"the uid {node.uid!r} is used twice"
            raise DuplicateUidError(message)
        seen.add(node.uid)


def _described(node: SourceNode | OperatorNode | SinkNode) -> str:
    if isinstance(node, OperatorNode):
        return f"the operator keyed by {', '.join(node.key_columns)}"
    if isinstance(node, SourceNode):
        return f"one of several sources, that of {', '.join(node.schema.names)},"
    return "a sink"


def _downstream(topology: Topology, node: NodeId) -> Iterator[Node]:
    for consumer in topology.consumers(node):
        yield consumer
        yield from _downstream(topology, consumer.id)
