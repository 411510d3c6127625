"""Running a KeyedProcessFunction over the batches of a subtask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs.functions import ProcessContext, RuntimeContext, row_type
from jobs.runtime.body import KEY_GROUP_COLUMN
from jobs.runtime.columns import batch_of, timestamps_ms, tuples_of
from jobs.runtime.failures import user_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from jobs.functions import KeyedProcessFunction, Row
    from jobs.runtime.body import SubtaskFacts
    from state.keyed import KeyedStateBackend

_RESULTS_A_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Process:
    """The logic of an operator that runs a user's function."""

    function: KeyedProcessFunction

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> ProcessBody:
        return ProcessBody(self.function, state, facts)


class ProcessBody:
    """A user's function at work in one task."""

    def __init__(self, function: KeyedProcessFunction, state: KeyedStateBackend, facts: SubtaskFacts) -> None:
        self._function = function
        self._state = state
        self._facts = facts
        self._row_type = row_type(facts.input_columns)
        with user_code():
            function.open(RuntimeContext(state, facts))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        schema = self._facts.output_schema
        results: list[Any] = []
        process_element = self._function.process_element
        with user_code():
            for row, context in self._records(batch):
                produced = process_element(row, context)
                if produced is not None:
                    results.extend(produced)
                    if len(results) >= _RESULTS_A_BATCH:
                        yield batch_of(results, schema)
                        results.clear()
        if results:
            yield batch_of(results, schema)

    def close(self) -> None:
        with user_code():
            self._function.close()

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[Row, ProcessContext]]:
        """Each record, with the state of its key made current."""
        context = ProcessContext()
        set_current_key = self._state.set_current_key
        single = len(self._facts.key_columns) == 1
        groups = batch.column(KEY_GROUP_COLUMN).to_pylist()
        keys = tuples_of(batch, self._facts.key_columns)
        rows = map(self._row_type, tuples_of(batch, self._facts.input_columns))
        times = self._timestamps(batch)
        for key_group, key, row, timestamp in zip(groups, keys, rows, times, strict=True):
            set_current_key(key_group, key)
            context.current_key = key[0] if single else key
            context.timestamp = timestamp
            yield row, context

    def _timestamps(self, batch: pa.RecordBatch) -> list[int | None]:
        column = self._facts.timestamp_column
        return [None] * batch.num_rows if column is None else timestamps_ms(batch, column)
