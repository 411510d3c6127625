"""Functions that users write for keyed streams, and what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from jobs.errors import OperatorStateUnavailableError, UnknownOutputError
from state.ttl import TimeDomain

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from jobs.runtime.body import SubtaskFacts
    from jobs.timers import TimerService
    from state.aggregating import AggregatingState, ReducingState
    from state.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
    from state.keyed import KeyedStateBackend
    from state.list import ListState
    from state.map import MapState
    from state.operator_state import OperatorListState, OperatorStateBackend
    from state.value import ValueState

_fields_of: Any = namedtuple  # noqa: PYI024 - the names are known only at run time, which mypy has no form for


class Row(tuple[Any, ...]):
    """A record: a tuple in the order of the stream's columns, read by name as `row.column` or `row["a column"]`."""

    __slots__ = ()

    columns: ClassVar[tuple[str, ...]] = ()
    _positions: ClassVar[dict[str, int]] = {}

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self._positions[key] if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> Any:  # asked for what is no column only
        message = f"the record has no column {name!r}; it has: {', '.join(self.columns)}"
        raise AttributeError(message)

    def as_dict(self) -> dict[str, Any]:
        """The record as a dict from column to value."""
        return dict(zip(self.columns, self, strict=True))


def row_type(columns: tuple[str, ...]) -> type[Row]:
    """A kind of Row with attributes for its columns (those whose names are Python identifiers)."""
    # A named tuple's descriptors are the fastest attributes that Python has; a column that cannot be one gets a number.
    fields = _fields_of("Fields", columns, rename=True)
    attributes: dict[str, Any] = {name: fields.__dict__[name] for name in fields._fields}
    positions = {name: at for at, name in enumerate(columns)}
    return type("Row", (Row,), {**attributes, "__slots__": (), "columns": columns, "_positions": positions})


class RuntimeContext:
    """What a function is opened with: its place, and access to keyed state."""

    def __init__(
        self, state: KeyedStateBackend, facts: SubtaskFacts, operator: OperatorStateBackend | None = None
    ) -> None:
        self._state = state
        self._facts = facts
        self._operator = operator

    @property
    def operator_uid(self) -> str:
        return self._facts.operator_uid

    @property
    def subtask_index(self) -> int:
        return self._facts.subtask

    @property
    def parallelism(self) -> int:
        return self._facts.parallelism

    @property
    def max_parallelism(self) -> int:
        return self._facts.max_parallelism

    @property
    def attempt(self) -> int:
        return self._facts.attempt

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """One value a key; it is that of the current key whenever it is used."""
        return self._state.value_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """A map a key, each entry of which is stored by itself."""
        return self._state.map_state(descriptor)

    def get_migrating_map_state(self, old: ValueStateDescriptor, new: MapStateDescriptor) -> MapState:
        """A map state that takes over from a value state of whole maps: whatever touches a key first moves its map.

        Raises:
            StateSchemaMismatchError: The two do not hold the same, or have different TTLs or namespaces.
        """
        return self._state.migrating_map_state(old, new)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A list a key, each element of which is stored by itself."""
        return self._state.list_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """One value a key, into which every added value is reduced."""
        return self._state.reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """One accumulator a key, to which every added value is added."""
        return self._state.aggregating_state(descriptor)

    @property
    def is_restored(self) -> bool:
        """Whether operator state is what an earlier run left, dealt out anew: true in the first batch after a restart."""
        return self._operator is not None and self._operator.is_restored

    def get_operator_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list of this subtask, whatever the key. After a restart the elements of all subtasks' lists are dealt out round robin.

        Raises:
            OperatorStateUnavailableError: The function has dead letters, whose effects could not be undone here.
        """
        return self._operator_state().list_state(descriptor)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list of this subtask, whatever the key. After a restart every subtask has the elements of all; keep what is yours.

        Raises:
            OperatorStateUnavailableError: As `get_operator_list_state`.
        """
        return self._operator_state().union_list_state(descriptor)

    def _operator_state(self) -> OperatorStateBackend:
        if self._operator is None:
            message = "operator state is not for functions with dead letters"
            raise OperatorStateUnavailableError(message)
        return self._operator


@dataclass(frozen=True, slots=True)
class OutputTag:
    """Names a side output and says what its records are.

    Attributes:
        name: Unlike that of any other side output of the operator.
        schema: The records' columns and types.
    """

    name: str
    schema: pa.Schema


class ProcessContext:
    """What a function is given with each record. It is reused: read it, do not keep it.

    Attributes:
        current_key: The record's key: the key column's value, or a tuple of the values of several key columns.
        timestamp: The record's event time in milliseconds since the epoch; None where the stream has no timestamps. In
            `on_timer`, the time that the timer was registered for.
    """

    __slots__ = ("_side_results", "_timers", "current_key", "timestamp")

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]]) -> None:
        self.current_key: Any = None
        self.timestamp: int | None = None
        self._timers = timers
        self._side_results = side_results

    def timer_service(self) -> TimerService:
        """The watermark, the time, and timers of the current key."""
        return self._timers

    def output(self, tag: OutputTag, record: Any) -> None:
        """Puts a record, a dict of all columns or a tuple in their order, into a side output.

        Raises:
            UnknownOutputError: The operator was declared without it.
        """
        side = self._side_results.get(tag.name)
        if side is None:
            message = f"side output {tag.name!r} was not declared: name it in side_outputs=[...]"
            raise UnknownOutputError(message)
        side.append(record)


class OnTimerContext(ProcessContext):
    """What a function is given with each timer. It is reused as well.

    Attributes:
        time_domain: Whether the watermark or the clock has reached the timer.
    """

    __slots__ = ("time_domain",)

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]]) -> None:
        super().__init__(timers, side_results)
        self.time_domain = TimeDomain.EVENT


class KeyedProcessFunction(ABC):
    """A function over the records of a keyed stream, with state and timers a key.

    One copy runs in each subtask. It is opened anew for each batch of records: keep what must last in state, not in `self`.
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - overriding it is the user's choice
        """Called before the first record of a batch; get the states here."""

    @abstractmethod
    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Any] | None:
        """Called for each record, in the order of arrival; a generator, or returns an iterable or None.

        Each result is one output record: a dict of all output columns, or a tuple in their order.
        """

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any] | None:  # noqa: ARG002 - for overriding
        """Called when a timer fires, at the end of a batch, with its key's state; results as of `process_element`."""
        return None

    def close(self) -> None:  # noqa: B027 - as above
        """Called after the last record of a batch and its timers; not when the batch has failed."""
