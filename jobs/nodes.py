"""What a job's graph is made of: values, no Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NewType, TypeAlias

from jobs.errors import InvalidTopologyError
from state.identifiers import OperatorUid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from jobs.runtime.body import OperatorLogic
    from jobs.sinks import Sink

NodeId = NewType("NodeId", int)
NO_UID = OperatorUid("")
ONLY_SOURCE_UID = OperatorUid("source")
"""What a job's only source is called as long as it has no uid."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """Where a stream's records have their event time.

    Attributes:
        column: A timestamp, or milliseconds since the epoch.
        out_of_orderness_ms: By how much a record may be older than one that came before it, and not be late.
        idle_after_ms: For how long a source must have no records until others need not wait for it; None: they always do.
    """

    column: str
    out_of_orderness_ms: int = 0
    idle_after_ms: int | None = None

    def __post_init__(self) -> None:
        if self.out_of_orderness_ms < 0:
            message = f"records cannot be {self.out_of_orderness_ms} ms out of order"
            raise InvalidTopologyError(message)
        if self.idle_after_ms is not None and self.idle_after_ms <= 0:
            message = f"a source cannot be idle after {self.idle_after_ms} ms"
            raise InvalidTopologyError(message)


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Where records come in: a streaming DataFrame. How far it was read is found again by its uid."""

    id: NodeId
    frame: DataFrame
    schema: pa.Schema
    uid: OperatorUid = NO_UID

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class TransformNode:
    """A stateless Spark step, applied to each batch."""

    id: NodeId
    input: NodeId
    apply: Callable[[DataFrame], DataFrame]
    schema: pa.Schema

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class TimestampsNode:
    """From here on a stream's records have event times."""

    id: NodeId
    input: NodeId
    timestamps: Timestamps
    schema: pa.Schema

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class UnionNode:
    """Several streams of one schema as one."""

    id: NodeId
    inputs: tuple[NodeId, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class SecondInput:
    """A further keyed stream that an operator works on; attributes as of OperatorNode."""

    node: NodeId
    schema: pa.Schema
    key_columns: tuple[str, ...]
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """A keyed, stateful step. Its state is found again by its uid; `key_schema` is what it is stored by.

    It may have a second input: `broadcast`, of which every subtask gets every record, or `second`, which is keyed alike.
    """

    id: NodeId
    input: NodeId
    uid: OperatorUid
    key_columns: tuple[str, ...]
    key_schema: pa.Schema
    input_schema: pa.Schema
    schema: pa.Schema
    timestamp_column: str | None
    logic: OperatorLogic
    out_of_orderness_ms: int = 0
    side_outputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    broadcast: NodeId | None = None
    broadcast_schema: pa.Schema | None = None
    second: SecondInput | None = None

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        others = (self.broadcast, None if self.second is None else self.second.node)
        return (self.input, *(each for each in others if each is not None))


@dataclass(frozen=True, slots=True)
class SideOutputNode:
    """One of the side outputs of an operator, which is its input."""

    id: NodeId
    input: NodeId
    tag: str
    schema: pa.Schema

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Where records go out."""

    id: NodeId
    input: NodeId
    uid: OperatorUid
    sink: Sink

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


Node: TypeAlias = SourceNode | TransformNode | TimestampsNode | UnionNode | OperatorNode | SideOutputNode | SinkNode


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose records come in at a node: those of a source, or those that an operator puts out.

    Attributes:
        node: The source or the operator.
        timestamps: What the records' event times were said to be on their way from there; None: nothing.
    """

    node: SourceNode | OperatorNode
    timestamps: Timestamps | None = None

    @property
    def name(self) -> str:
        """What it is known by in the commit log; no uid has a colon."""
        return self.node.uid if isinstance(self.node, SourceNode) else f"operator:{self.node.uid}"

    def joined(self, other: Origin) -> Origin:
        """The records that come from here on either of two ways: later ways must not be late by the sooner one's times."""
        if self.timestamps is None or other.timestamps is None:
            return Origin(self.node, self.timestamps or other.timestamps)
        one, two = self.timestamps, other.timestamps
        idle_ms = (
            None
            if one.idle_after_ms is None or two.idle_after_ms is None
            else max(one.idle_after_ms, two.idle_after_ms)
        )
        bound_ms = max(one.out_of_orderness_ms, two.out_of_orderness_ms)
        return Origin(self.node, Timestamps(one.column, bound_ms, idle_ms))


@dataclass(frozen=True, slots=True)
class Arrival:
    """An origin of the records that come in at one of an operator's keyed inputs.

    Attributes:
        origin: Whose records.
        port: 0 for the first input, 1 for the second.
        timestamp_column: Of the input's records.
        out_of_orderness_ms: By how much they may be late if nothing was said of this origin's.
    """

    origin: Origin
    port: int = 0
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0

    @property
    def name(self) -> str:
        """What it is known by in the commit log."""
        return self.origin.name if self.port == 0 else f"second:{self.origin.name}"
