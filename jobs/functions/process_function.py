"""Functions over the records of keyed streams, with rows and contexts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from keyscale.state.doors.keyed import KeyedStateAccess, ListStateDescriptor, TimeDomain, check_descriptor

from ..errors import OperatorStateUnavailableError, UnknownOutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from keyscale.state.doors.keyed import (
        KeyedStateBackend,
        OperatorListState,
        OperatorStateBackend,
        TimerService,
    )

    from .function_metrics import FunctionMetrics
    from .subtask_info import SubtaskInfo

_Resource = TypeVar("_Resource")
_fields_of: Any = namedtuple  # noqa: PYI024 - mypy cannot express names known only at run time


class Row(tuple[Any, ...]):
    """A record: a tuple in the order of the stream's columns.

    Columns are read by name: `row.column` or `row["a column"]`.
    """

    __slots__ = ()

    columns: ClassVar[tuple[str, ...]] = ()
    _positions: ClassVar[dict[str, int]] = {}

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self._positions[key] if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> Any:  # called only for names that are not columns
        raise AttributeError(f"the record has no column {name!r}; it has: {', '.join(self.columns)}")

    def as_dict(self) -> dict[str, Any]:
        """Returns the record as a dict from column to value."""
        return dict(zip(self.columns, self, strict=True))


def row_type(columns: tuple[str, ...]) -> type[Row]:
    """Returns a subclass of Row with an attribute per column.

    A column has an attribute if its name is a Python identifier.
    """
    # Named tuple descriptors are the fastest attributes in Python; a name that is not an identifier becomes a number.
    fields = _fields_of("Fields", columns, rename=True)
    attributes: dict[str, Any] = {name: fields.__dict__[name] for name in fields._fields}
    positions = {name: at for at, name in enumerate(columns)}
    return type("Row", (Row,), {**attributes, "__slots__": (), "columns": columns, "_positions": positions})


class RuntimeContext(KeyedStateAccess):
    """The context that a function's `open` receives.

    It gives the subtask, access to state, and objects that outlast the batch.
    """

    def __init__(
        self, state: KeyedStateBackend, info: SubtaskInfo, operator_state: OperatorStateBackend | None = None
    ) -> None:
        super().__init__(state)
        self._info = info
        self._operator_state = operator_state

    @property
    def operator_uid(self) -> str:
        return self._info.operator_uid

    @property
    def subtask_index(self) -> int:
        return self._info.subtask

    @property
    def parallelism(self) -> int:
        return self._info.parallelism

    @property
    def max_parallelism(self) -> int:
        return self._info.max_parallelism

    @property
    def attempt(self) -> int:
        return self._info.attempt

    @property
    def metrics(self) -> FunctionMetrics:
        """The function's own metrics; declare them in `open`."""
        return self._info.metrics

    def worker_resource(self, name: str, make: Callable[[], _Resource]) -> _Resource:
        """Returns an object that lives as long as this Python worker.

        Use it for a model or a client. Subtasks of the operator that run in the same worker share it, one after the
        other. The worker drops the object when a batch of the operator fails in the worker. Keep lasting data in state.

        Args:
            name: Its name, unique within the operator.
            make: Makes it. Called only if the worker does not have it.
        """
        resources = self._info.resources
        if name not in resources:
            resources[name] = make()
        resource: _Resource = resources[name]
        return resource

    @property
    def is_restored(self) -> bool:
        """Whether operator state has just been redistributed after a restart.

        True in the first batch only.
        """
        return self._operator_state is not None and self._operator_state.is_restored

    def get_operator_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """Returns a list per subtask, independent of keys.

        A restart at the same parallelism leaves each list where it is. At another parallelism the elements of all
        subtasks, in their order, are split into runs of almost the same length.

        Raises:
            OperatorStateUnavailableError: The function has dead letters; effects of failed records on this state cannot
                be undone.
        """
        check_descriptor(descriptor, ListStateDescriptor)
        return self._given_operator_state().list_state(descriptor)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """Returns a list per subtask, independent of keys.

        A restart gives every subtask all elements; keep only the elements of your subtask.

        Raises:
            OperatorStateUnavailableError: As for `get_operator_list_state`.
        """
        check_descriptor(descriptor, ListStateDescriptor)
        return self._given_operator_state().union_list_state(descriptor)

    def _given_operator_state(self) -> OperatorStateBackend:
        if self._operator_state is None:
            raise OperatorStateUnavailableError("a function with dead letters cannot have operator state")
        return self._operator_state


@dataclass(frozen=True, slots=True)
class OutputTag:
    """Declares a side output.

    Attributes:
        name: Its name, unique within the operator.
        schema: The columns and types of its records.
    """

    name: str
    schema: pa.Schema


class ProcessContext:
    """The context of a record.

    The object is reused: read it, do not keep it.

    Attributes:
        current_key: The record's key: the value of the key column, or a tuple if there are several key columns.
        timestamp: The record's event time in milliseconds since the epoch; None if the stream has no timestamps.
            In `on_timer`, the time that the timer was registered for.
    """

    __slots__ = ("_side_results", "_timers", "current_key", "timestamp")

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]]) -> None:
        self.current_key: Any = None
        self.timestamp: int | None = None
        self._timers = timers
        self._side_results = side_results

    def timer_service(self) -> TimerService:
        """Returns the service for the watermark, processing time and timers.

        Timers belong to the current key.
        """
        return self._timers

    def output(self, tag: OutputTag, record: Any) -> None:
        """Emits a record to a side output.

        The record is a dict of all columns, or a tuple in their order.

        Raises:
            UnknownOutputError: The operator does not declare this side output.
        """
        side = self._side_results.get(tag.name)
        if side is None:
            raise UnknownOutputError(f"side output {tag.name!r} was not declared: name it in side_outputs=[...]")
        side.append(record)


class OnTimerContext(ProcessContext):
    """The context of a timer.

    The object is reused: read it, do not keep it.

    Attributes:
        time_domain: Whether the watermark or the processing time has reached the timer.
    """

    __slots__ = ("time_domain",)

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]]) -> None:
        super().__init__(timers, side_results)
        self.time_domain = TimeDomain.EVENT


class KeyedProcessFunction(ABC):
    """A function over a keyed stream, with state and timers per key.

    One instance runs in each subtask. A new instance is opened for each batch: keep lasting data in state, not in
    `self`, and a model or a client in the worker (`RuntimeContext.worker_resource`).
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - users may override it
        """Opens the function before the first record of a batch.

        Get the states here.
        """

    @abstractmethod
    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Any] | None:
        """Processes a record; records come in the order of arrival.

        Returns:
            The output records, or None. Each is a dict of all output columns or a tuple in their order. A generator
            works, too.
        """

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any] | None:  # noqa: ARG002 - to override
        """Handles a timer at the end of a batch, for its key.

        Returns:
            The output records, as for `process_element`.
        """
        return None

    def close(self) -> None:  # noqa: B027 - users may override it
        """Closes the function after the last record and timer of a batch.

        Not called if the batch has failed.
        """


class KeyedCoProcessFunction(ABC):
    """A function over two keyed streams that share state and timers.

    One instance runs in each subtask; a new instance is opened for each batch. Within a batch, the order between the
    two streams is undefined.
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - users may override it
        """Opens the function before the first record of a batch.

        Get the states here.
        """

    @abstractmethod
    def process_element1(self, row: Row, context: ProcessContext) -> Iterable[Any] | None:
        """Processes a record of the first stream.

        Returns output records as KeyedProcessFunction does.
        """

    @abstractmethod
    def process_element2(self, row: Row, context: ProcessContext) -> Iterable[Any] | None:
        """Processes a record of the second stream.

        Returns output records as KeyedProcessFunction does.
        """

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any] | None:  # noqa: ARG002 - to override
        """Handles a timer at the end of a batch, for its key."""
        return None

    def close(self) -> None:  # noqa: B027 - users may override it
        """Closes the function after the last record and timer of a batch.

        Not called if the batch has failed.
        """
