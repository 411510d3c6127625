"""Two keyed streams with one state: the records of a key of either stream meet in one function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jobs.functions import row_type
from jobs.process import ProcessBody
from jobs.runtime.body import OperatorLogic
from state.operator_state import OperatorStateBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from jobs.functions import OnTimerContext, ProcessContext, Row, RuntimeContext
    from jobs.runtime.body import OutputBatch, SubtaskFacts
    from state.keyed import KeyedStateBackend


class KeyedCoProcessFunction(ABC):
    """A function over the records of two keyed streams, with state and timers a key that both share.

    One copy runs in each subtask, and is opened anew for each batch. Which stream's records of a batch come first is not defined.
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - overriding it is the user's choice
        """Called before the first record of a batch; get the states here."""

    @abstractmethod
    def process_element1(self, row: Row, context: ProcessContext) -> Iterable[Any] | None:
        """Called for each record of the first stream; results as of KeyedProcessFunction."""

    @abstractmethod
    def process_element2(self, row: Row, context: ProcessContext) -> Iterable[Any] | None:
        """Called for each record of the second stream."""

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any] | None:  # noqa: ARG002 - for overriding
        """Called when a timer fires, at the end of a batch, with its key's state."""
        return None

    def close(self) -> None:  # noqa: B027 - as above
        """Called after the last record of a batch and its timers; not when the batch has failed."""


@dataclass(frozen=True, slots=True)
class CoProcess(OperatorLogic):
    """The logic of an operator that runs a user's function over two keyed streams."""

    function: KeyedCoProcessFunction

    @property
    def uses_timers(self) -> bool:
        return type(self.function).on_timer is not KeyedCoProcessFunction.on_timer

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> CoProcessBody:
        return self.start_with(state, facts, OperatorStateBackend())

    def start_with(
        self, state: KeyedStateBackend, facts: SubtaskFacts, operator: OperatorStateBackend
    ) -> CoProcessBody:
        return CoProcessBody(self.function, state, facts, operator)


class CoProcessBody(ProcessBody):
    """A user's function at work in one task."""

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        state: KeyedStateBackend,
        facts: SubtaskFacts,
        operator: OperatorStateBackend,
    ) -> None:
        assert facts.second is not None  # noqa: S101 - the graph gives such a function two inputs
        second = facts.second
        self._second_facts = replace(
            facts,
            input_columns=second.input_columns,
            key_columns=second.key_columns,
            timestamp_column=second.timestamp_column,
        )
        self._second_row = row_type(second.input_columns)
        super().__init__(function, state, facts, operator)

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        yield from self._run(self._function.process_element1, batch, self._facts)

    def process_second(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        yield from self._run(self._function.process_element2, batch, self._second_facts, self._second_row)
