"""Declarations of the state that is written to a new savepoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.state.doors.keyed import (
    DescriptorError,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    OperatorStateSnapshot,
    StateDescriptor,
    check_name,
)
from keyscale.state.doors.writing import (
    KeyedSchema,
    RowsInvalidError,
    StateSchema,
    TimersSchema,
    operator_states_of,
    schema_of_key,
    type_to_json,
)

from .argument import ArgumentInvalidError, check_argument, described, items_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keyscale.state.doors.reading import StoredOperatorState

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

    def __post_init__(self) -> None:
        check_argument("NewState.descriptor", self.descriptor, "the descriptor of a state", StateDescriptor)

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

    def __post_init__(self) -> None:
        check_name(self.name)
        check_argument(
            "NewTimers.namespace_type", self.namespace_type, "an Arrow type or None", pa.DataType, type(None)
        )

    def added_to(self, schema: KeyedSchema) -> KeyedSchema:
        """Returns a schema with the timers.

        Raises:
            StateSchemaMismatchError: A state has the name, or timers with another namespace.
        """
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

    def __post_init__(self) -> None:
        check_argument("NewOperatorState.descriptor", self.descriptor, "the descriptor of a state", StateDescriptor)

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
        return operator_states_of(self.name, self._declared(), batches_of(self.name, self.rows), parallelism)

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

    def __post_init__(self) -> None:
        check_argument("NewOperator.uid", self.uid, "the uid as text", str)
        try:
            columns = pa.schema(self.key).names
        except (TypeError, ValueError):
            columns = []
        if not columns:
            raise ArgumentInvalidError(
                f"the key of operator {self.uid!r} is not a mapping of columns to Arrow types, such as"
                ' {"user": pa.string()}'
            )
        states = new_states("NewOperator.states", self.states)
        operator_states = items_of(
            "NewOperator.operator_states", self.operator_states, "a NewOperatorState", NewOperatorState
        )
        # The instance is frozen, and a generator gives its items only once.
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "operator_states", operator_states)

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


def new_states(name: str, values: Any) -> tuple[NewState | DeclaredState | NewTimers, ...]:
    """Returns the keyed states and timers of an argument.

    Raises:
        ArgumentInvalidError: The argument holds something else.
    """
    return items_of(name, values, "a NewState or NewTimers", NewState, NewTimers, DeclaredState)


def with_states(schema: KeyedSchema, states: Iterable[NewState | DeclaredState | NewTimers]) -> KeyedSchema:
    """Returns a schema with states and timers added, or replaced."""
    for each in states:
        schema = each.added_to(schema)
    return schema


def batches_of(state: str, rows: Any) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a state as bounded record batches.

    Raises:
        RowsInvalidError: Arrow cannot read the rows.
    """
    for part in [rows] if _is_arrow(rows) else _parts_of(state, rows):
        if isinstance(part, pa.Table):
            yield from part.to_batches(max_chunksize=_BATCH_ROWS_MAX)
        elif isinstance(part, pa.RecordBatch):
            yield part
        elif _is_arrow(part):
            yield from _streamed(state, part)
        else:
            raise _no_rows(state, f"hold {described(part)}")


def _is_arrow(rows: Any) -> bool:
    return isinstance(rows, pa.RecordBatch) or hasattr(rows, "__arrow_c_stream__")


def _parts_of(state: str, rows: Any) -> Iterable[Any]:
    if isinstance(rows, Iterable) and not isinstance(rows, (str, bytes, Mapping)):
        return rows
    raise _no_rows(state, f"are {described(rows)}")


def _streamed(state: str, rows: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield from pa.RecordBatchReader.from_stream(rows)
    except pa.ArrowInvalid as error:  # a stream of single values
        raise _no_rows(state, f"are {described(rows)}") from error


def _no_rows(state: str, what: str) -> RowsInvalidError:
    return RowsInvalidError(f"the rows of {state!r} {what}; give an Arrow table, record batches or a DataFrame")
