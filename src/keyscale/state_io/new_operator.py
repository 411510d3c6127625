"""Declarations of the state that is written to a new savepoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.state.doors.keyed import (
    DescriptorError,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    OperatorStateSnapshot,
    check_name,
)
from keyscale.state.doors.writing import (
    KeyedSchema,
    TimersSchema,
    operator_states_of,
    schema_of_key,
    type_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keyscale.state.doors.keyed import StateDescriptor
    from keyscale.state.doors.reading import StoredOperatorState
    from keyscale.state.doors.writing import StateSchema

_BATCH_ROWS_MAX = 262_144


@dataclass(frozen=True, slots=True)
class NewState:
    """A keyed state, and its rows.

    Attributes:
        descriptor: The declaration of the state, as in the job.
        rows: A row per value, map entry or list element; see `keyscale.state_io`. Locally this is an Arrow table,
            anything that Arrow can read as a stream, or record batches; with Spark it is a DataFrame.
    """

    descriptor: StateDescriptor[Any]
    rows: Any

    @property
    def name(self) -> str:
        """The name of the state."""
        return self.descriptor.name

    def added_to(self, schema: KeyedSchema) -> KeyedSchema:
        """Returns a schema with the state."""
        return schema.with_state(self.descriptor.stored())


@dataclass(frozen=True, slots=True)
class DeclaredState:
    """A keyed state of a loaded program, and its rows; see `NewState`."""

    schema: StateSchema
    rows: Any

    @property
    def name(self) -> str:
        """The name of the state."""
        return self.schema.name

    def added_to(self, schema: KeyedSchema) -> KeyedSchema:
        """Returns a schema with the state."""
        return schema.with_state(self.schema)


@dataclass(frozen=True, slots=True)
class NewTimers:
    """Timers, and their rows.

    Attributes:
        name: Their name: EVENT_TIMERS or PROCESSING_TIMERS for a function's timers.
        rows: A row per timer; see `NewState`.
        namespace_type: The type of each timer's namespace; None: the void namespace.
    """

    name: str
    rows: Any
    namespace_type: pa.DataType | None = None

    def added_to(self, schema: KeyedSchema) -> KeyedSchema:
        """Returns a schema with the timers.

        Raises:
            DescriptorError: The name cannot be used.
            StateSchemaMismatchError: A state has the name, or timers with another namespace.
        """
        check_name(self.name)
        namespace = None if self.namespace_type is None else type_to_json(self.namespace_type)
        return schema.with_timers(TimersSchema(self.name, namespace))


@dataclass(frozen=True, slots=True)
class NewOperatorState:
    """An operator state, and its rows.

    Attributes:
        descriptor: The declaration of the list or of the broadcast map, as in the job.
        rows: A row per list element or map entry; see `NewState`.
        is_union: Whether each subtask of the job starts with all elements of the list.
    """

    descriptor: StateDescriptor[Any]
    rows: Any
    is_union: bool = False

    @property
    def name(self) -> str:
        """The name of the state."""
        return self.descriptor.name

    def snapshots(self, parallelism: int) -> list[OperatorStateSnapshot]:
        """Returns the state of each subtask.

        Raises:
            DescriptorError: The descriptor cannot declare operator state.
            RowsInvalidError: Rows do not fit the state.
        """
        return operator_states_of(self.name, self._declared(), batches_of(self.rows), parallelism)

    def _declared(self) -> StoredOperatorState:
        backend, descriptor = OperatorStateBackend(), self.descriptor
        if isinstance(descriptor, ListStateDescriptor):
            (backend.union_list_state if self.is_union else backend.list_state)(descriptor)
        elif isinstance(descriptor, MapStateDescriptor) and not self.is_union:
            backend.broadcast_state(descriptor)
        else:
            raise DescriptorError(f"operator state {self.name!r} is a list, a union list or a broadcast map")
        return backend.snapshot().states[self.name]


@dataclass(frozen=True, slots=True)
class NewOperator:
    """An operator, and all of its state.

    Attributes:
        uid: The operator's uid in the job.
        key: Names and Arrow types of the key's columns, as the job has them, also for an operator without keyed state.
        states: Its keyed states and timers.
        operator_states: Its operator states.
    """

    uid: str
    key: pa.Schema | Mapping[str, pa.DataType]
    states: Sequence[NewState | DeclaredState | NewTimers] = ()
    operator_states: Sequence[NewOperatorState] = ()

    @property
    def schema(self) -> KeyedSchema:
        """The schema of all of its keyed state."""
        return with_states(schema_of_key(pa.schema(self.key)), self.states)

    def operator_snapshots(self, parallelism: int) -> list[OperatorStateSnapshot]:
        """Returns the operator state of each subtask; raises as `NewOperatorState.snapshots`."""
        by_state = [each.snapshots(parallelism) for each in self.operator_states]
        return [
            OperatorStateSnapshot({name: state for each in by_state for name, state in each[index].states.items()})
            for index in range(parallelism)
        ]


def with_states(schema: KeyedSchema, states: Iterable[NewState | DeclaredState | NewTimers]) -> KeyedSchema:
    """Returns a schema with states and timers added, or replaced."""
    for each in states:
        schema = each.added_to(schema)
    return schema


def batches_of(rows: Any) -> Iterator[pa.RecordBatch]:
    """Yields rows as record batches of a bounded size.

    Raises:
        TypeError: Arrow cannot read the rows.
    """
    if isinstance(rows, pa.Table):
        yield from rows.to_batches(max_chunksize=_BATCH_ROWS_MAX)
    elif isinstance(rows, pa.RecordBatch):
        yield rows
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(rows)
    else:
        for each in rows:
            yield from batches_of(each)
