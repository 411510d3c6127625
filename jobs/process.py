"""Running a KeyedProcessFunction over the batches of a subtask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs.functions import KeyedProcessFunction, OnTimerContext, ProcessContext, RuntimeContext, row_type
from jobs.runtime.body import KEY_GROUP_COLUMN, OperatorBody, OperatorLogic, SideBatch
from jobs.runtime.columns import batch_of, timestamps_ms, tuples_of
from jobs.runtime.failures import user_code
from jobs.timers import TimerService

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from jobs.functions import Row
    from jobs.runtime.body import NextTimers, OutputBatch, SubtaskFacts
    from state.keyed import KeyedStateBackend

_RESULTS_A_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Process(OperatorLogic):
    """The logic of an operator that runs a user's function."""

    function: KeyedProcessFunction

    @property
    def uses_timers(self) -> bool:
        return type(self.function).on_timer is not KeyedProcessFunction.on_timer

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> ProcessBody:
        return ProcessBody(self.function, state, facts)


class Results:
    """Output records of a user's function until there are enough for a batch."""

    def __init__(self, facts: SubtaskFacts) -> None:
        self._schema = facts.output_schema
        self._side_schemas = facts.side_outputs
        self._main: list[Any] = []
        self.side: dict[str, list[Any]] = {tag: [] for tag in facts.side_outputs}

    def add(self, produced: Iterable[Any] | None) -> bool:
        """Takes what a call gave; True once there is enough for a batch."""
        if produced is not None:
            self._main.extend(produced)
        return len(self._main) >= _RESULTS_A_BATCH or (
            bool(self.side) and any(len(records) >= _RESULTS_A_BATCH for records in self.side.values())
        )

    def rest(self) -> Iterator[OutputBatch]:
        """All that is left."""
        if self._main:
            yield batch_of(self._main, self._schema)
            self._main.clear()
        for tag, records in self.side.items():
            if records:
                yield SideBatch(tag, batch_of(records, self._side_schemas[tag]))
                records.clear()


class ProcessBody(OperatorBody):
    """A user's function at work in one task."""

    def __init__(self, function: KeyedProcessFunction, state: KeyedStateBackend, facts: SubtaskFacts) -> None:
        self._function = function
        self._state = state
        self._facts = facts
        self._row_type = row_type(facts.input_columns)
        self._timers = TimerService(state)
        self._results = Results(facts)
        self._single = len(facts.key_columns) == 1
        with user_code():
            function.open(RuntimeContext(state, facts))

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        results = self._results
        process_element = self._function.process_element
        with user_code():
            for row, context in self._records(batch):
                if results.add(process_element(row, context)):
                    yield from results.rest()
        yield from results.rest()

    def fire(self) -> Iterator[OutputBatch]:
        context = OnTimerContext(self._timers, self._results.side)
        on_timer = self._function.on_timer
        with user_code():
            for domain, timer in self._timers.due():
                self._state.set_current_key(timer.key_group, timer.key)
                context.current_key = timer.key[0] if self._single else timer.key
                context.timestamp = timer.timestamp_ms
                context.time_domain = domain
                if self._results.add(on_timer(timer.timestamp_ms, context)):
                    yield from self._results.rest()
        yield from self._results.rest()

    def next_times(self) -> NextTimers:
        return self._timers.next_times()

    def close(self) -> None:
        with user_code():
            self._function.close()

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[Row, ProcessContext]]:
        """Each record, with the state of its key made current."""
        context = ProcessContext(self._timers, self._results.side)
        set_current_key = self._state.set_current_key
        groups = batch.column(KEY_GROUP_COLUMN).to_pylist()
        keys = tuples_of(batch, self._facts.key_columns)
        rows = map(self._row_type, tuples_of(batch, self._facts.input_columns))
        times = self._timestamps(batch)
        for key_group, key, row, timestamp in zip(groups, keys, rows, times, strict=True):
            set_current_key(key_group, key)
            context.current_key = key[0] if self._single else key
            context.timestamp = timestamp
            yield row, context

    def _timestamps(self, batch: pa.RecordBatch) -> list[int | None]:
        column = self._facts.timestamp_column
        return [None] * batch.num_rows if column is None else timestamps_ms(batch, column)
