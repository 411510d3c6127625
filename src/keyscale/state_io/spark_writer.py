"""Writes a savepoint from DataFrames, in parallel tasks.

Tasks encode the rows of all states. One shuffle brings the entries of a subtask into one partition, whose task sorts
them, writes the files, and stores them. Then the driver publishes the manifest.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from keyscale.clock import now_ms
from keyscale.state.doors.subtasks import SnapshotHandle
from keyscale.state.doors.values import HashId
from keyscale.state.doors.writing import (
    KeyHashing,
    NewSavepoint,
    NewSubtask,
    StoredEntries,
    SubtaskWriter,
    encoder_of,
    operator_snapshot,
)

from .argument import check_argument, hashing_of, items_of
from .new_operator import NewOperator
from .savepoint_writer import MAX_PARALLELISM, check_operators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from keyscale.state.doors.commits import OperatorSnapshot
    from keyscale.state.doors.keyed import OperatorStateSnapshot
    from keyscale.state.doors.writing import KeyedSchema

_ENTRIES = "subtask int, state int, key binary, value binary"
_ENTRIES_ARROW = pa.schema(
    [("subtask", pa.int32()), ("state", pa.int32()), ("key", pa.binary()), ("value", pa.binary())]
)
_HANDLES = "subtask int, handle binary, entries array<bigint>"
_HANDLES_ARROW = pa.schema([("subtask", pa.int32()), ("handle", pa.binary()), ("entries", pa.list_(pa.int64()))])


def write(
    spark: SparkSession,
    location: str,
    operators: Sequence[NewOperator],
    *,
    max_parallelism: int = MAX_PARALLELISM,
    parallelism: int | None = None,
    hash_id: str = HashId.SPARK,
    scratch: str | None = None,
) -> str:
    """Writes a savepoint from DataFrames, and publishes it.

    Args:
        spark: The session, whose executors can import `keyscale` and reach the store.
        location: Where: `<store>/<name>/savepoints/<id>`.
        operators: The operators; the rows of their states are DataFrames.
        max_parallelism: The number of key groups, which a job that starts from the savepoint keeps.
        parallelism: The number of tasks that write an operator, and of its subtasks; None: the session's default.
        hash_id: How keys are hashed: `spark` or `java`.
        scratch: A directory on each executor with room for twice a task's state; None: the system's.

    Returns:
        The location of the savepoint, for `jobs start --from`.

    Raises:
        PythonException: A task has failed; the message names Keyscale's error, as `savepoint_writer.write` raises it.
        KeyscaleError: As `savepoint_writer.write`.
    """
    operators = items_of("operators", operators, "a NewOperator", NewOperator)
    check_argument("parallelism", parallelism, "a whole number or None", int, type(None))
    savepoint = NewSavepoint.at(location, hashing_of(max_parallelism, hash_id))
    check_operators(operators)
    if parallelism is None:
        parallelism = min(spark.sparkContext.defaultParallelism, max_parallelism)
    savepoint.ranges(parallelism)  # refuses a parallelism that is out of bounds
    for state in (state for operator in operators for state in operator.states):
        check_argument(f"NewState.rows of {state.name!r}", state.rows, "a DataFrame of Spark", DataFrame)
    with savepoint.written(is_private=runs_here(spark)):
        savepoint.publish(
            [write_operator(savepoint, operator, parallelism, scratch).snapshot for operator in operators]
        )
    return savepoint.location


def runs_here(spark: SparkSession) -> bool:
    """Returns whether tasks run as this user.

    Executors of a cluster may run as another user.
    """
    return (spark.sparkContext.master or "").startswith("local")


@dataclass(frozen=True, slots=True)
class WrittenOperator:
    """An operator that tasks have written.

    Attributes:
        snapshot: The operator's files.
        entries: The number of entries of each state and of timers.
    """

    snapshot: OperatorSnapshot
    entries: Mapping[str, int]


def write_operator(
    savepoint: NewSavepoint, operator: NewOperator, parallelism: int, scratch: str | None
) -> WrittenOperator:
    """Writes an operator in a task per subtask; raises as `write`.

    The rows of operator state are collected: each subtask of the job has its share of them in memory.
    """
    schema = operator.schema
    operator_states = operator.operator_snapshots(parallelism)
    subtasks = [
        NewSubtask(savepoint, operator.uid, schema, index, key_groups)
        for index, key_groups in enumerate(savepoint.ranges(parallelism))
    ]
    names = [state.name for state in operator.states]
    at_ms = now_ms()
    encoded = [
        state.rows.mapInArrow(_Encode(schema, names, place, savepoint.hashing, at_ms, parallelism), _ENTRIES)
        for place, state in enumerate(operator.states)
    ]
    handles: dict[int, SnapshotHandle] = {}
    counts = dict.fromkeys(names, 0)
    if encoded:
        entries = reduce(DataFrame.union, encoded).repartitionById(parallelism, "subtask")
        rows = entries.mapInArrow(_Store(subtasks, operator_states, names, scratch), _HANDLES).collect()
        handles = {row.subtask: msgspec.json.decode(row.handle, type=SnapshotHandle) for row in rows}
        counts = {name: sum(row.entries[place] for row in rows) for place, name in enumerate(names)}
    with tempfile.TemporaryDirectory(prefix="keyscale-write-") as directory:
        for subtask in subtasks:
            if subtask.index not in handles:  # it has no entries
                with SubtaskWriter(subtask, Path(directory)) as writer:
                    handles[subtask.index] = writer.finish(operator_states[subtask.index])
    snapshot = operator_snapshot(operator.uid, schema, [handles[subtask.index] for subtask in subtasks])
    return WrittenOperator(snapshot, counts)


@dataclass(frozen=True, slots=True)
class _Encode:
    """Encodes the rows of one state in a task."""

    schema: KeyedSchema
    names: Sequence[str]
    place: int
    hashing: KeyHashing
    at_ms: int
    parallelism: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = encoder_of(self.schema, self.names[self.place], self.hashing, self.at_ms)
        for batch in batches:
            entries = encoder.encode(batch)
            columns = [
                pa.array(entries.subtasks(self.hashing.max_parallelism, self.parallelism), pa.int32()),
                pa.repeat(pa.scalar(self.place, pa.int32()), len(entries)),
                entries.keys.arrow().cast(pa.binary()),
                entries.values.arrow().cast(pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ENTRIES_ARROW)


@dataclass(frozen=True, slots=True)
class _Store:
    """Writes the files of the subtask of a partition in a task."""

    subtasks: Sequence[NewSubtask]
    operator_states: Sequence[OperatorStateSnapshot]
    names: Sequence[str]
    scratch: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer: SubtaskWriter | None = None
        index = -1
        counts = [0] * len(self.names)
        with tempfile.TemporaryDirectory(prefix="keyscale-write-", dir=self.scratch) as directory:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    index = batch.column("subtask")[0].as_py()
                    writer = SubtaskWriter(self.subtasks[index], Path(directory))
                for place, entries in _by_state(batch):
                    writer.add(self.names[place], entries)
                    counts[place] += len(entries)
            if writer is None:
                return
            handle = msgspec.json.encode(writer.finish(self.operator_states[index]))
        yield pa.RecordBatch.from_pylist(
            [{"subtask": index, "handle": handle, "entries": counts}], schema=_HANDLES_ARROW
        )


def _by_state(batch: pa.RecordBatch) -> Iterator[tuple[int, StoredEntries]]:
    for place in pc.unique(batch.column("state")).to_pylist():
        part = batch.filter(pc.equal(batch.column("state"), place))
        yield place, StoredEntries.of_columns(part.column("key"), part.column("value"))
