"""The nodes of a job's graph: values, without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NewType, TypeAlias

from keyscale.identifiers import OperatorUid

from ..errors import InvalidTopologyError, UnionTimestampsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ..functions.subtask_info import FailedRecordPolicy
    from ..operators.operator_contract import OperatorLogic
    from ..sinks.sink import Sink

NodeId = NewType("NodeId", int)
NO_UID = OperatorUid("")
DAY_MS: Final = 86_400_000
ONLY_SOURCE_UID = OperatorUid("source")
"""The uid of a job's only source, if the script gives it none."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The event time of a stream's records.

    Attributes:
        column: The column with the event time: a timestamp, or milliseconds since the epoch.
        out_of_orderness_ms: How much older than an earlier record a record may be without being late.
        idle_after_ms: After this time without records, a source, or a split of it, no longer holds back the watermark;
            None for never.
        split_columns: The columns that name the split of its source that a record comes from. Each split has its
            own watermark. Without such columns, a source has one watermark.
        max_ahead_ms: A record whose event time is further ahead of the processing time is late, and does not advance
            the watermark; None for no limit.
    """

    column: str
    out_of_orderness_ms: int = 0
    idle_after_ms: int | None = None
    split_columns: tuple[str, ...] = ()
    max_ahead_ms: int | None = None

    def __post_init__(self) -> None:
        if self.out_of_orderness_ms < 0:
            raise InvalidTopologyError(f"records cannot be {self.out_of_orderness_ms} ms out of order")
        if self.idle_after_ms is not None and self.idle_after_ms <= 0:
            raise InvalidTopologyError(f"a source cannot be idle after {self.idle_after_ms} ms")
        if self.max_ahead_ms is not None and self.max_ahead_ms < 0:
            raise InvalidTopologyError(f"records cannot be at most {self.max_ahead_ms} ms ahead of the clock")


def union_timestamps(timestamps: Sequence[Timestamps | None]) -> Timestamps | None:
    """Returns the timestamps of a union, which must share one column.

    All streams have timestamps in the same column, or none of them has timestamps.

    Raises:
        UnionTimestampsError: The columns differ, or only some streams have timestamps.
    """
    known = [each for each in timestamps if each is not None]
    columns = {each.column for each in known}
    if len(columns) > 1 or 0 < len(known) < len(timestamps):
        found = ", ".join("none" if each is None else repr(each.column) for each in timestamps)
        raise UnionTimestampsError(f"the timestamp columns of the streams of a union are: {found}")
    if not known:
        return None
    splits = {each.split_columns for each in known}
    return Timestamps(
        known[0].column,
        max(each.out_of_orderness_ms for each in known),
        split_columns=splits.pop() if len(splits) == 1 else (),
        max_ahead_ms=_largest_limit(each.max_ahead_ms for each in known),
    )


def _largest_limit(limits_ms: Iterable[int | None]) -> int | None:
    """Returns the largest limit; None for records without any."""
    known = list(limits_ms)
    return None if None in known else max(limit for limit in known if limit is not None)


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A streaming DataFrame; its uid identifies its positions in later runs.

    Attributes:
        split_columns: The source's columns that identify a record's split, if any.
        carries_split: Whether the frame has a hidden column with the record's split, besides its schema.
    """

    id: NodeId
    frame: DataFrame
    schema: pa.Schema
    uid: OperatorUid = NO_UID
    split_columns: tuple[str, ...] = ()
    carries_split: bool = False

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class TransformNode:
    """A stateless Spark step, applied to each batch.

    Attributes:
        reads_once: Whether Spark computes each partition of the step's input once, in a task of its own.
        carries_split: Whether the result has the hidden column with the record's split, besides its schema.
    """

    id: NodeId
    input: NodeId
    apply: Callable[[DataFrame], DataFrame]
    schema: pa.Schema
    reads_once: bool = True
    carries_split: bool = False

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class TimestampsNode:
    """Assigns event times to a stream's records."""

    id: NodeId
    input: NodeId
    timestamps: Timestamps
    schema: pa.Schema

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class UnionNode:
    """The union of several streams of the same schema."""

    id: NodeId
    inputs: tuple[NodeId, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class SecondInput:
    """The second keyed input of an operator.

    The attributes correspond to the attributes of OperatorNode.
    """

    node: NodeId
    schema: pa.Schema
    key_columns: tuple[str, ...]
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    max_ahead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """A keyed, stateful step.

    Its uid identifies its state in later runs; `key_schema` is the key of the stored state.

    It may have a second input: either `broadcast`, whose records all go to every subtask, or `second`, which has the
    same key.
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
    max_ahead_ms: int | None = None
    failed_records: FailedRecordPolicy = "fail"

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        others = (self.broadcast, None if self.second is None else self.second.node)
        return (self.input, *(each for each in others if each is not None))


@dataclass(frozen=True, slots=True)
class SideOutputNode:
    """A side output of an operator, which is the node's input."""

    id: NodeId
    input: NodeId
    tag: str
    schema: pa.Schema

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A sink that records go to."""

    id: NodeId
    input: NodeId
    uid: OperatorUid
    sink: Sink

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        return (self.input,)


Node: TypeAlias = SourceNode | TransformNode | TimestampsNode | UnionNode | OperatorNode | SideOutputNode | SinkNode


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The source or operator of the records that arrive at a node.

    Attributes:
        node: The source or the operator.
        timestamps: The event times assigned to the records on their way; None if none were assigned.
    """

    node: SourceNode | OperatorNode
    timestamps: Timestamps | None = None

    @property
    def name(self) -> str:
        """The name of the origin in the commit log.

        Uids contain no colon.
        """
        return self.node.uid if isinstance(self.node, SourceNode) else f"operator:{self.node.uid}"

    def joined(self, other: RecordOrigin) -> RecordOrigin:
        """Returns the origin of the records of two origins.

        It has the larger bounds of both, so that no record is late by the smaller ones.
        """
        if self.timestamps is None or other.timestamps is None:
            return RecordOrigin(self.node, self.timestamps or other.timestamps)
        one, two = self.timestamps, other.timestamps
        idle_ms = (
            None
            if one.idle_after_ms is None or two.idle_after_ms is None
            else max(one.idle_after_ms, two.idle_after_ms)
        )
        bound_ms = max(one.out_of_orderness_ms, two.out_of_orderness_ms)
        splits = one.split_columns if one.split_columns == two.split_columns else ()
        ahead_ms = _largest_limit((one.max_ahead_ms, two.max_ahead_ms))
        return RecordOrigin(self.node, Timestamps(one.column, bound_ms, idle_ms, splits, ahead_ms))


@dataclass(frozen=True, slots=True)
class Arrival:
    """An origin of records at one keyed input of an operator.

    Attributes:
        origin: The origin.
        port: 0 for the first input, 1 for the second.
        timestamp_column: The column with the event time of the input's records.
        out_of_orderness_ms: The bound for records of an origin without timestamps of its own.
        split_columns: The columns that identify a record's split; none if the origin has one watermark.
        carries_split: Whether the records have their split in the hidden column instead of these columns.
    """

    origin: RecordOrigin
    port: int = 0
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    split_columns: tuple[str, ...] = ()
    carries_split: bool = False

    @property
    def name(self) -> str:
        """The name of the arrival in the commit log."""
        return self.origin.name if self.port == 0 else f"second:{self.origin.name}"

    @property
    def bound_ms(self) -> int:
        """The time by which its records may be out of order."""
        timestamps = self.origin.timestamps
        return self.out_of_orderness_ms if timestamps is None else timestamps.out_of_orderness_ms

    @property
    def follows_operator(self) -> bool:
        """Whether its records have the watermark of the operator that emits them."""
        return isinstance(self.origin.node, OperatorNode) and (
            self.timestamp_column is None or self.origin.timestamps is None
        )

    @property
    def splits_name(self) -> str:
        """The name of the arrival's splits in the commit log.

        Splits by other columns are other splits.
        """
        return f"{self.name}({','.join(self.split_columns)})"
