"""The operator for a function over a keyed and a broadcast stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.state.doors.keyed import OperatorStateBackend

from ..functions.broadcast_function import (
    BroadcastContext,
    BroadcastStates,
    KeyedBroadcastProcessFunction,
    KeyedReadOnlyContext,
    KeyedReadOnlyTimerContext,
)
from ..functions.process_function import OnTimerContext, ProcessContext, row_type
from .column_values import tuples_of
from .failures import user_code
from .operator_contract import OperatorLogic
from .process_operator import ProcessOperator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from keyscale.state.doors.keyed import KeyedStateBackend, MapStateDescriptor

    from ..functions.subtask_info import SubtaskInfo
    from .operator_contract import OutputBatch


@dataclass(frozen=True, slots=True)
class BroadcastProcess(OperatorLogic):
    """The logic of an operator over a keyed and a broadcast stream.

    Attributes:
        function: The function.
        descriptors: The broadcast states.
    """

    function: KeyedBroadcastProcessFunction
    descriptors: tuple[MapStateDescriptor, ...]

    @property
    def uses_timers(self) -> bool:
        return type(self.function).on_timer is not KeyedBroadcastProcessFunction.on_timer

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> BroadcastProcessOperator:
        return self.start_with(state, info, OperatorStateBackend())

    def start_with(
        self, state: KeyedStateBackend, info: SubtaskInfo, operator_state: OperatorStateBackend
    ) -> BroadcastProcessOperator:
        return BroadcastProcessOperator(self, state, info, operator_state)


class BroadcastProcessOperator(ProcessOperator):
    """A function over a keyed and a broadcast stream in one task."""

    def __init__(
        self,
        logic: BroadcastProcess,
        state: KeyedStateBackend,
        info: SubtaskInfo,
        operator_state: OperatorStateBackend,
    ) -> None:
        self._broadcast = BroadcastStates(operator_state, logic.descriptors)
        self._broadcast_record = 0
        self._broadcast_row = row_type(info.broadcast_columns)
        super().__init__(logic.function, state, info, operator_state)

    def process_broadcast(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        context = BroadcastContext(self._timers, self._results.side, self._broadcast)
        self._state.clear_current_key()
        with user_code(self._broadcast_coordinates):
            for row in map(self._broadcast_row, tuples_of(batch, self._info.broadcast_columns)):
                self._broadcast_record += 1
                if self._results.add(self._function.process_broadcast_element(row, context)):
                    yield from self._results.rest()
        yield from self._results.rest()

    def _broadcast_coordinates(self) -> str:
        return f"at broadcast record {self._broadcast_record} of the batch, in subtask {self._info.subtask}"

    def _context(self) -> ProcessContext:
        return KeyedReadOnlyContext(self._timers, self._results.side, self._broadcast)

    def _timer_context(self) -> OnTimerContext:
        return KeyedReadOnlyTimerContext(self._timers, self._results.side, self._broadcast)
