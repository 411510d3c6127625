"""Running a StatefulProcessor: a whole micro-batch of a subtask key by key, then the timers that are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from jobs.runtime.body import NextTimers, OperatorBody, OperatorLogic
from jobs.runtime.columns import timestamps_ms
from jobs.runtime.failures import user_code
from jobs.transform_with_state.handle import ProcessorHandle
from jobs.transform_with_state.record_form import RecordForm, output_batch, records_by_key
from jobs.transform_with_state.time_mode import ProcessorTime, TimeMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jobs.runtime.body import OutputBatch, SubtaskFacts
    from jobs.transform_with_state.initial_state import InitialState
    from state.keyed import KeyedStateBackend

_RESULTS_A_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class TransformWithState(OperatorLogic):
    """The logic of an operator that runs a StatefulProcessor.

    Attributes:
        processor: What to run.
        time_mode: Which timers and TTLs it may have.
        form: How it sees records.
        initial_state: What its keys begin with; None: nothing.
    """

    processor: StatefulProcessor
    time_mode: TimeMode = TimeMode.NONE
    form: RecordForm = RecordForm.ROWS
    initial_state: InitialState | None = None

    @property
    def uses_timers(self) -> bool:
        """With an initial state, too: every subtask has to run once, also one that no record comes to."""
        return self.time_mode is not TimeMode.NONE or self.initial_state is not None

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> TransformWithStateBody:
        return TransformWithStateBody(self, state, facts)


class TransformWithStateBody(OperatorBody):
    """A StatefulProcessor at work in one task.

    As in Spark, `handleInputRows` is called once a key and micro-batch. So records are kept, as Arrow batches, until all have come.
    """

    def __init__(self, logic: TransformWithState, state: KeyedStateBackend, facts: SubtaskFacts) -> None:
        self._logic = logic
        self._processor = logic.processor
        self._state = state
        self._facts = facts
        self._time = ProcessorTime(logic.time_mode, state.clock)
        self._handle = ProcessorHandle(state, self._time)
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[Any] = []
        with user_code():
            self._processor.init(self._handle)
        self._handle.close_declarations()

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        self._batches.append(self._without_late(batch))
        return iter(())

    def fire(self) -> Iterator[OutputBatch]:
        times = TimerValues(self._time.processing_ms, self._time.watermark_ms)
        with user_code():
            self._give_initial_state(times)
            for found in records_by_key(self._batches, self._facts.key_columns, self._logic.form):
                self._state.set_current_key(found.key_group, found.key)
                yield from self._taken(self._processor.handleInputRows(found.key, found.records, times))
            self._batches.clear()
            for timer in self._handle.due():
                self._state.set_current_key(timer.key_group, timer.key)
                at_ms = self._time.shown_ms(timer.timestamp_ms)
                results = self._processor.handleExpiredTimer(timer.key, times, ExpiredTimerInfo(at_ms))
                yield from self._taken(results)
                # After it: until then it is listed, and what registers it again for the same time has it deleted, as in Spark.
                self._handle.deleteTimer(at_ms)
            self._state.clear_current_key()
            yield from self._rest()

    def next_times(self) -> NextTimers:
        next_ms = self._handle.next_timer_ms
        return NextTimers(next_ms) if self._logic.time_mode is TimeMode.EVENT_TIME else NextTimers(None, next_ms)

    def close(self) -> None:
        with user_code():
            self._processor.close()

    def _give_initial_state(self, times: TimerValues) -> None:
        initial = self._logic.initial_state
        if initial is None:
            return
        for found in records_by_key(initial.take(self._state, self._facts), initial.key_columns, self._logic.form):
            self._state.set_current_key(found.key_group, found.key)
            for record in found.records:
                self._processor.handleInitialState(found.key, record, times)

    def _taken(self, results: Iterable[Any] | None) -> Iterator[pa.RecordBatch]:
        """Takes results of a call; gives a batch once there is enough for one."""
        for result in results or ():
            if self._logic.form is RecordForm.PANDAS:
                yield output_batch(result, self._facts.output_schema, RecordForm.PANDAS)
            else:
                self._rows.append(result)
                if len(self._rows) >= _RESULTS_A_BATCH:
                    yield from self._rest()

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield output_batch(self._rows, self._facts.output_schema, RecordForm.ROWS)
            self._rows.clear()

    def _without_late(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leaves out what Spark drops: records at or before the watermark that the batch before fired its timers with."""
        column = self._facts.timestamp_column
        if self._logic.time_mode is not TimeMode.EVENT_TIME or column is None or not self._time.has_watermark:
            return batch
        watermark_ms = self._time.watermark_ms
        in_time = [at_ms is None or at_ms > watermark_ms for at_ms in timestamps_ms(batch, column)]
        return batch if all(in_time) else batch.filter(pa.array(in_time))
