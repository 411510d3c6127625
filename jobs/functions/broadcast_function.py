"""Functions over a keyed and a broadcast stream, with their contexts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..errors import OperatorStateUnavailableError
from .process_function import OnTimerContext, ProcessContext

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyscale.state.doors.keyed import (
        BroadcastState,
        MapStateDescriptor,
        OperatorStateBackend,
        ReadOnlyBroadcastState,
        TimerService,
    )

    from .process_function import OutputTag, Row, RuntimeContext


class KeyedBroadcastProcessFunction(ABC):
    """A function over a keyed stream that reads broadcast state.

    One instance runs in each subtask; a new instance is opened for each batch. In a batch, every subtask processes the
    broadcast records first, in the same order, and then its keyed records.
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - users may override it
        """Opens the function before the first record of a batch.

        Get the states here.
        """

    @abstractmethod
    def process_element(self, row: Row, context: KeyedReadOnlyContext) -> Iterable[Any] | None:
        """Processes a record of the keyed stream, with its key's state.

        Returns:
            The output records, as in KeyedProcessFunction.
        """

    @abstractmethod
    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> Iterable[Any] | None:
        """Processes a record of the broadcast stream, in every subtask.

        The call has no current key. It must change broadcast state in the same way in every subtask: depend only on the
        record and on that state.

        Returns:
            The output records. Each subtask emits its own copy of them.
        """

    def on_timer(
        self,
        timestamp: int,  # noqa: ARG002 - to override
        context: KeyedReadOnlyTimerContext,  # noqa: ARG002 - to override
    ) -> Iterable[Any] | None:
        """Handles a timer at the end of a batch, for its key."""
        return None

    def close(self) -> None:  # noqa: B027 - users may override it
        """Closes the function after the last record and timer of a batch.

        Not called if the batch has failed.
        """


class BroadcastStates:
    """The broadcast states that an operator declares, by name."""

    def __init__(self, operator_state: OperatorStateBackend, descriptors: Iterable[MapStateDescriptor]) -> None:
        self._states = {each.name: (each, operator_state.broadcast_state(each)) for each in descriptors}

    def get(self, descriptor: MapStateDescriptor) -> BroadcastState:
        declared, state = self._states.get(descriptor.name, (None, None))
        if state is None or declared != descriptor:
            raise OperatorStateUnavailableError(
                f"broadcast state {descriptor.name!r} was not declared in this form when the stream was broadcast"
            )
        return state


class KeyedReadOnlyContext(ProcessContext):
    """The context of a record of the keyed stream.

    The object is reused: read it, do not keep it.
    """

    __slots__ = ("_broadcast",)

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]], broadcast: BroadcastStates) -> None:
        super().__init__(timers, side_results)
        self._broadcast = broadcast

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Returns a broadcast state for reading.

        The state is a map with the same content in all subtasks.

        Raises:
            OperatorStateUnavailableError: The stream was broadcast without this descriptor.
        """
        return self._broadcast.get(descriptor).read_only()


class KeyedReadOnlyTimerContext(OnTimerContext):
    """The context of a timer.

    The object is reused: read it, do not keep it.
    """

    __slots__ = ("_broadcast",)

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]], broadcast: BroadcastStates) -> None:
        super().__init__(timers, side_results)
        self._broadcast = broadcast

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Returns a broadcast state for reading, as `KeyedReadOnlyContext` does."""
        return self._broadcast.get(descriptor).read_only()


class BroadcastContext:
    """The context of a record of the broadcast stream.

    The object is reused: read it, do not keep it.
    """

    __slots__ = ("_broadcast", "_context")

    def __init__(self, timers: TimerService, side_results: dict[str, list[Any]], broadcast: BroadcastStates) -> None:
        self._context = ProcessContext(timers, side_results)
        self._broadcast = broadcast

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """Returns a broadcast state for changes.

        The state is a map that every subtask must change in the same way.

        Raises:
            OperatorStateUnavailableError: The stream was broadcast without this descriptor.
        """
        return self._broadcast.get(descriptor)

    def current_watermark(self) -> int:
        """Returns the operator's watermark, computed from its keyed stream."""
        return self._context.timer_service().current_watermark()

    def output(self, tag: OutputTag, record: Any) -> None:
        """Emits a record to a side output, as `ProcessContext.output` does."""
        self._context.output(tag, record)
