"""Describes a running subtask and the columns that it works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from keyscale.state.doors.values import HashId

from .function_metrics import FunctionMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex

FailedRecordPolicy: TypeAlias = Literal["fail", "drop"]
"""The fate of a record that an operator fails on: the batch fails, or the record is dropped and counted."""


@dataclass(frozen=True, slots=True)
class SecondInputInfo:
    """Describes the records of an operator's second input.

    The attributes correspond to the attributes of SubtaskInfo.
    """

    input_columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    timestamp_column: str | None = None
    max_ahead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """Describes the splits that records come from.

    Attributes:
        name: Names the source or operator and its split columns.
        columns: The split columns.
    """

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubtaskInfo:
    """Describes one subtask of an operator.

    Attributes:
        operator_uid: The operator.
        subtask: The index of the subtask.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        attempt: The attempt that runs.
        input_columns: Names of the input records' columns.
        key_columns: Names of the key's columns.
        timestamp_column: Name of the column with the event time, if any.
        output_schema: Schema of the main output.
        side_outputs: Schemas of the declared side outputs, by tag name.
        hash_id: How keys are hashed to key groups.
        origins: Names of the sources and operators that the records come from; a record's `__origin` is an index into
            this list. Empty if all records have the same origin.
        splits: How records name their split, by source or operator; only sources and operators with splits.
        broadcast_columns: Names of the broadcast records' columns; empty if there is no broadcast stream.
        max_ahead_ms: How far a record's event time may be ahead of the processing time without being late; None for no
            limit.
        failed_records: The fate of a record that fails without dead letters: "fail" fails the batch, "drop" drops
            the record.
        second: Describes the second keyed input, if any.
        resources: Objects that the operator's functions keep in this process, by name, from batch to batch.
        metrics: The metrics of the operator's functions in this batch.
    """

    operator_uid: OperatorUid
    subtask: SubtaskIndex
    parallelism: int
    max_parallelism: int
    attempt: Attempt
    input_columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    timestamp_column: str | None
    output_schema: pa.Schema
    side_outputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    hash_id: HashId = HashId.SPARK
    origins: tuple[str, ...] = ()
    splits: Mapping[str, SplitInfo] = field(default_factory=dict)
    broadcast_columns: tuple[str, ...] = ()
    max_ahead_ms: int | None = None
    failed_records: FailedRecordPolicy = "fail"
    second: SecondInputInfo | None = None
    resources: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    metrics: FunctionMetrics = field(default_factory=FunctionMetrics, compare=False, repr=False)
