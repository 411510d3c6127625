"""A keyed stream beside a broadcast one: rules, models, settings that every subtask must know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs.errors import OperatorStateUnavailableError
from jobs.functions import OnTimerContext, ProcessContext, row_type
from jobs.process import ProcessBody
from jobs.runtime.body import OperatorLogic
from jobs.runtime.columns import tuples_of
from jobs.runtime.failures import user_code
from state.operator_state import OperatorStateBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from jobs.functions import OutputTag, Row, RuntimeContext
    from jobs.runtime.body import OutputBatch, SubtaskFacts
    from jobs.timers import TimerService
    from state.descriptors import MapStateDescriptor
    from state.keyed import KeyedStateBackend
    from state.operator_state import BroadcastState, ReadOnlyBroadcastState


class KeyedBroadcastProcessFunction(ABC):
    """A function over the records of a keyed stream, which sees what the records of a broadcast stream have made known.

    One copy runs in each subtask, and is opened anew for each batch. In a batch the broadcast records come before the keyed ones,
    in every subtask in the same order.
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - overriding it is the user's choice
        """Called before the first record of a batch; get the states here."""

    @abstractmethod
    def process_element(self, row: Row, context: KeyedReadOnlyContext) -> Iterable[Any] | None:
        """Called for each record of the keyed stream, with the state of its key; results as of KeyedProcessFunction."""

    @abstractmethod
    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> Iterable[Any] | None:
        """Called for each record of the broadcast stream, in every subtask: each of them puts the results out.

        It must do the same to broadcast state everywhere: let nothing but the record and that state decide. There is no key.
        """

    def on_timer(self, timestamp: int, context: KeyedReadOnlyTimerContext) -> Iterable[Any] | None:  # noqa: ARG002 - for overriding
        """Called when a timer fires, at the end of a batch, with its key's state."""
        return None

    def close(self) -> None:  # noqa: B027 - as above
        """Called after the last record of a batch and its timers; not when the batch has failed."""


class BroadcastStates:
    """The broadcast states that an operator was declared with, by their names."""

    def __init__(self, operator: OperatorStateBackend, descriptors: Iterable[MapStateDescriptor]) -> None:
        self._states = {each.name: (each, operator.broadcast_state(each)) for each in descriptors}

    def get(self, descriptor: MapStateDescriptor) -> BroadcastState:
        declared, state = self._states.get(descriptor.name, (None, None))
        if state is None or declared != descriptor:
            message = f"broadcast state {descriptor.name!r} is not declared like this where the stream is broadcast"
            raise OperatorStateUnavailableError(message)
        return state


class KeyedReadOnlyContext(ProcessContext):
    """What a function is given with each record of the keyed stream. It is reused: read it, do not keep it."""

    __slots__ = ("_broadcast",)

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]], broadcast: BroadcastStates) -> None:
        super().__init__(timers, side_results)
        self._broadcast = broadcast

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """A map that all subtasks have alike, as the broadcast records so far have made it.

        Raises:
            OperatorStateUnavailableError: The stream was broadcast without this descriptor.
        """
        return self._broadcast.get(descriptor).read_only()


class KeyedReadOnlyTimerContext(OnTimerContext):
    """What a function is given with each timer. It is reused as well."""

    __slots__ = ("_broadcast",)

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]], broadcast: BroadcastStates) -> None:
        super().__init__(timers, side_results)
        self._broadcast = broadcast

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """As of KeyedReadOnlyContext."""
        return self._broadcast.get(descriptor).read_only()


class BroadcastContext:
    """What a function is given with each record of the broadcast stream. It is reused: read it, do not keep it."""

    __slots__ = ("_broadcast", "_context")

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]], broadcast: BroadcastStates) -> None:
        self._context = ProcessContext(timers, side_results)
        self._broadcast = broadcast

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """A map that all subtasks have alike, to be changed in all of them alike.

        Raises:
            OperatorStateUnavailableError: The stream was broadcast without this descriptor.
        """
        return self._broadcast.get(descriptor)

    def current_watermark(self) -> int:
        """The operator's, which is that of its keyed stream."""
        return self._context.timer_service().current_watermark()

    def output(self, tag: OutputTag, record: Any) -> None:
        """As of ProcessContext."""
        self._context.output(tag, record)


@dataclass(frozen=True, slots=True)
class BroadcastProcess(OperatorLogic):
    """The logic of an operator that runs a user's function over a keyed and a broadcast stream.

    Attributes:
        function: The function.
        descriptors: Of the broadcast states.
    """

    function: KeyedBroadcastProcessFunction
    descriptors: tuple[MapStateDescriptor, ...]

    @property
    def uses_timers(self) -> bool:
        return type(self.function).on_timer is not KeyedBroadcastProcessFunction.on_timer

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> BroadcastBody:
        return self.start_with(state, facts, OperatorStateBackend())

    def start_with(
        self, state: KeyedStateBackend, facts: SubtaskFacts, operator: OperatorStateBackend
    ) -> BroadcastBody:
        return BroadcastBody(self, state, facts, operator)


class BroadcastBody(ProcessBody):
    """A user's function at work in one task."""

    def __init__(
        self, logic: BroadcastProcess, state: KeyedStateBackend, facts: SubtaskFacts, operator: OperatorStateBackend
    ) -> None:
        self._broadcast = BroadcastStates(operator, logic.descriptors)
        self._broadcast_record = 0
        self._broadcast_row = row_type(facts.broadcast_columns)
        super().__init__(logic.function, state, facts, operator)

    def process_broadcast(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        context = BroadcastContext(self._timers, self._results.side, self._broadcast)
        self._state.clear_current_key()
        with user_code(self._broadcast_coordinates):
            for row in map(self._broadcast_row, tuples_of(batch, self._facts.broadcast_columns)):
                self._broadcast_record += 1
                if self._results.add(self._function.process_broadcast_element(row, context)):
                    yield from self._results.rest()
        yield from self._results.rest()

    def _broadcast_coordinates(self) -> str:
        return f"at broadcast record {self._broadcast_record} of the batch, in subtask {self._facts.subtask}"

    def _context(self) -> ProcessContext:
        return KeyedReadOnlyContext(self._timers, self._results.side, self._broadcast)

    def _timer_context(self) -> OnTimerContext:
        return KeyedReadOnlyTimerContext(self._timers, self._results.side, self._broadcast)
