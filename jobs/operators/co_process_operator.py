"""The operator for one function over two keyed streams with shared state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keyscale.state.doors.keyed import OperatorStateBackend

from ..functions.process_function import KeyedCoProcessFunction, row_type
from .operator_contract import OperatorLogic
from .process_operator import ProcessOperator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from keyscale.state.doors.keyed import KeyedStateBackend

    from ..functions.subtask_info import SubtaskInfo
    from .operator_contract import OutputBatch


@dataclass(frozen=True, slots=True)
class CoProcess(OperatorLogic):
    """The logic of an operator over two keyed streams."""

    function: KeyedCoProcessFunction

    @property
    def uses_timers(self) -> bool:
        return type(self.function).on_timer is not KeyedCoProcessFunction.on_timer

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> CoProcessOperator:
        return self.start_with(state, info, OperatorStateBackend())

    def start_with(
        self, state: KeyedStateBackend, info: SubtaskInfo, operator_state: OperatorStateBackend
    ) -> CoProcessOperator:
        return CoProcessOperator(self.function, state, info, operator_state)


class CoProcessOperator(ProcessOperator):
    """A user's function over two keyed streams, running in one task."""

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        state: KeyedStateBackend,
        info: SubtaskInfo,
        operator_state: OperatorStateBackend,
    ) -> None:
        assert info.second is not None  # noqa: S101 - the graph gives such a function two inputs
        second = info.second
        self._second_info = replace(
            info,
            input_columns=second.input_columns,
            key_columns=second.key_columns,
            timestamp_column=second.timestamp_column,
        )
        self._second_row = row_type(second.input_columns)
        super().__init__(function, state, info, operator_state)

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        yield from self._run(self._function.process_element1, batch, self._info)

    def process_second(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        yield from self._run(self._function.process_element2, batch, self._second_info, self._second_row)
