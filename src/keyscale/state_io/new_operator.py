"""Declarations of the state that is written to a new savepoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.state.doors.keyed import check_name
from keyscale.state.doors.writing import KeyedSchema, TimersSchema, schema_of_key, type_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keyscale.state.doors.keyed import StateDescriptor
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
class NewOperator:
    """An operator, and all of its keyed state.

    Attributes:
        uid: The operator's uid in the job.
        key: Names and Arrow types of the key's columns, as the job has them.
        states: Its states and timers.
    """

    uid: str
    key: pa.Schema | Mapping[str, pa.DataType]
    states: Sequence[NewState | DeclaredState | NewTimers] = ()

    @property
    def schema(self) -> KeyedSchema:
        """The schema of all of its state."""
        return with_states(schema_of_key(pa.schema(self.key)), self.states)


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
