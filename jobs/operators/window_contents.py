"""The contents of windows: stored state, and the results from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from keyscale.state.doors.keyed import AggregateFunction, AggregatingStateDescriptor, ListStateDescriptor

from ..functions.process_function import row_type
from ..functions.windows import WINDOW_TYPE
from .column_values import tuple_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.state.doors.keyed import KeyedStateBackend

    from ..functions.process_function import Row
    from ..functions.subtask_info import SubtaskInfo
    from ..functions.windows import ProcessWindowFunction, Window

_STATE = "window_contents"


class WindowContents(Protocol):
    """The contents of the current key's windows, as state."""

    def add(self, window: Window, row: Row) -> None: ...

    def results(self, key: Any, window: Window) -> list[tuple[Any, ...]] | None:
        """Returns the window's current results; None if it is empty."""
        ...

    def merge(self, target: Window, sources: Sequence[Window]) -> None: ...

    def clear(self, window: Window) -> None: ...


class ContentsLogic(Protocol):
    """The declaration of the contents of windows.

    It is picklable.
    """

    @property
    def result_function(self) -> Callable[..., Any]:
        """The user's function that returns the results of windows."""
        ...

    def start(self, state: KeyedStateBackend, info: SubtaskInfo, names: tuple[str, ...]) -> WindowContents:
        """Returns the contents in the state of a subtask.

        `names` are the columns of results.
        """
        ...


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Windows that aggregate records into an accumulator on arrival."""

    function: AggregateFunction
    accumulator: pa.DataType

    @property
    def result_function(self) -> Callable[..., Any]:
        return self.function.get_result

    def start(
        self,
        state: KeyedStateBackend,
        info: SubtaskInfo,  # noqa: ARG002 - as the protocol declares
        names: tuple[str, ...],
    ) -> WindowContents:
        return AggregatedContents(self.function, self.accumulator, state, names)


@dataclass(frozen=True, slots=True)
class Reduced:
    """Windows that reduce records into one record on arrival."""

    function: Callable[[Row, Row], Any]
    schema: pa.Schema

    @property
    def result_function(self) -> Callable[..., Any]:
        return self.function

    def start(self, state: KeyedStateBackend, info: SubtaskInfo, names: tuple[str, ...]) -> WindowContents:
        stored = pa.struct([pa.field(field.name, field.type) for field in self.schema])
        return AggregatedContents(_Reduction(self.function, info.input_columns, names), stored, state, names)


@dataclass(frozen=True, slots=True)
class Collected:
    """Windows that keep all records for a function."""

    function: ProcessWindowFunction
    schema: pa.Schema

    @property
    def result_function(self) -> Callable[..., Any]:
        return self.function.process

    def start(self, state: KeyedStateBackend, info: SubtaskInfo, names: tuple[str, ...]) -> WindowContents:
        return CollectedContents(self, state, info, names)


class AggregatedContents:
    """One accumulator per window."""

    def __init__(
        self, function: AggregateFunction, accumulator: pa.DataType, state: KeyedStateBackend, names: tuple[str, ...]
    ) -> None:
        self._names = names
        descriptor = AggregatingStateDescriptor(_STATE, accumulator, function, namespace_type=WINDOW_TYPE)
        self._state = state.state(descriptor)

    def add(self, window: Window, row: Row) -> None:
        self._state.set_current_namespace(window.stored())
        self._state.add(row)

    def results(self, key: Any, window: Window) -> list[tuple[Any, ...]] | None:  # noqa: ARG002 - as declared
        self._state.set_current_namespace(window.stored())
        result = self._state.get()
        return None if result is None else [tuple_of(result, self._names)]

    def merge(self, target: Window, sources: Sequence[Window]) -> None:
        self._state.merge_namespaces(target.stored(), [source.stored() for source in sources])

    def clear(self, window: Window) -> None:
        self._state.set_current_namespace(window.stored())
        self._state.clear()


class CollectedContents:
    """A list of records per window."""

    def __init__(self, logic: Collected, state: KeyedStateBackend, info: SubtaskInfo, names: tuple[str, ...]) -> None:
        self._function = logic.function
        self._names = names
        self._row_type = row_type(info.input_columns)
        stored = pa.struct([pa.field(field.name, field.type) for field in logic.schema])
        self._state = state.state(ListStateDescriptor(_STATE, stored, namespace_type=WINDOW_TYPE))

    def add(self, window: Window, row: Row) -> None:
        self._state.set_current_namespace(window.stored())
        self._state.add(row.as_dict())

    def results(self, key: Any, window: Window) -> list[tuple[Any, ...]] | None:
        self._state.set_current_namespace(window.stored())
        elements = [self._row_type(element.values()) for element in self._state.get()]
        if not elements:
            return None
        return [tuple_of(result, self._names) for result in self._function.process(key, window, elements) or ()]

    def merge(self, target: Window, sources: Sequence[Window]) -> None:
        self._state.merge_namespaces(target.stored(), [source.stored() for source in sources])

    def clear(self, window: Window) -> None:
        self._state.set_current_namespace(window.stored())
        self._state.clear()


class _Reduction(AggregateFunction):
    """A reduction as an aggregation.

    The accumulator is the reduced record, None before the first record.
    """

    def __init__(self, function: Callable[[Row, Row], Any], names: tuple[str, ...], results: tuple[str, ...]) -> None:
        self._function = function
        self._names = names
        self._result_names = results
        self._row_type = row_type(names)

    def create_accumulator(self) -> dict[str, Any] | None:
        return None

    def add(self, value: Row, accumulator: dict[str, Any] | None) -> dict[str, Any]:
        return value.as_dict() if accumulator is None else self._reduced(self._row(accumulator), value)

    def get_result(self, accumulator: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(accumulator[name] for name in self._result_names)

    def merge(self, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        return self._reduced(self._row(left), self._row(right))

    def _row(self, accumulator: dict[str, Any]) -> Row:
        return self._row_type(accumulator.values())

    def _reduced(self, left: Row, right: Row) -> dict[str, Any]:
        return dict(zip(self._names, tuple_of(self._function(left, right), self._names), strict=True))
