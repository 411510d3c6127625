"""The operator that runs a StatefulProcessor.

It processes a subtask's whole batch key by key, then fires the due timers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from keyscale.state.doors.keyed import NextTimers

from ..operators.column_values import BatchSize, timestamps_ms, up_to_ms
from ..operators.failures import results_of, user_code
from ..operators.operator_contract import Operator, OperatorLogic
from ..spark_internals.arrow_schemas import spark_schema_of
from .handle import ProcessorHandle
from .record_form import RecordForm, output_batch, records_by_key
from .row_codec import RowCodec
from .time_mode import ProcessorTime, TimeMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyscale.state.doors.keyed import KeyedStateBackend

    from ..functions.subtask_info import SubtaskInfo
    from ..operators.operator_contract import OutputBatch
    from .initial_state import InitialState


@dataclass(frozen=True, slots=True)
class TransformWithState(OperatorLogic):
    """The logic of an operator that runs a StatefulProcessor.

    Attributes:
        processor: The processor.
        time_mode: The timers and TTLs that it may have.
        form: The form in which it sees records.
        initial_state: The initial state of its keys, if any.
    """

    processor: StatefulProcessor
    time_mode: TimeMode = TimeMode.NONE
    form: RecordForm = RecordForm.ROWS
    initial_state: InitialState | None = None

    @property
    def uses_timers(self) -> bool:
        """Whether every subtask must run once even without records.

        It must if there are timers or an initial state.
        """
        return self.time_mode is not TimeMode.NONE or self.initial_state is not None

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> TransformWithStateOperator:
        return TransformWithStateOperator(self, state, info)


class TransformWithStateOperator(Operator):
    """A StatefulProcessor running in one task.

    As in Spark, `handleInputRows` is called once per key and batch. So records are kept, as Arrow batches, until all
    have arrived.
    """

    def __init__(self, logic: TransformWithState, state: KeyedStateBackend, info: SubtaskInfo) -> None:
        self._logic = logic
        self._processor = logic.processor
        self._state = state
        self._info = info
        self._time = ProcessorTime(logic.time_mode, state.clock)
        self._handle = ProcessorHandle(state, self._time, info.metrics)
        keys = [field.with_name(name) for name, field in zip(info.key_columns, state.schema.key_schema(), strict=True)]
        self._keys = RowCodec(spark_schema_of(pa.schema(keys)))
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[Any] = []
        self._size = BatchSize()
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
            with results_of(self._processor.handleInputRows):
                for found in records_by_key(self._batches, self._info.key_columns, self._logic.form):
                    self._state.set_current_key(found.key_group, found.key)
                    yield from self._taken(self._processor.handleInputRows(found.shown_key, found.records, times))
            self._batches.clear()
            with results_of(self._processor.handleExpiredTimer):
                for timer in self._handle.due():
                    self._state.set_current_key(timer.key_group, timer.key)
                    at_ms = self._time.shown_ms(timer.timestamp_ms)
                    # By name, as in Spark: a processor may have them in any order. Its key is a Row here.
                    results = self._processor.handleExpiredTimer(
                        key=self._keys.row(dict(zip(self._info.key_columns, timer.key, strict=True))),
                        timerValues=times,
                        expiredTimerInfo=ExpiredTimerInfo(at_ms),
                    )
                    yield from self._taken(results)
                    # Only now, as in Spark: the call still lists the timer, and cannot register it again.
                    self._handle.deleteTimer(at_ms)
            self._state.clear_current_key()
            with results_of(self._processor.handleInputRows):
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
        for found in records_by_key(initial.take(self._state, self._info), initial.key_columns, self._logic.form):
            self._state.set_current_key(found.key_group, found.key)
            for record in found.records:
                self._processor.handleInitialState(found.shown_key, record, times)

    def _taken(self, results: Iterable[Any] | None) -> Iterator[pa.RecordBatch]:
        """Collects the results of a call, and yields complete batches."""
        for result in results or ():
            if self._logic.form is RecordForm.PANDAS:
                yield output_batch(result, self._info.output_schema, RecordForm.PANDAS)
            else:
                self._rows.append(result)
                if len(self._rows) >= self._size.rows:
                    yield from self._rest()

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield self._size.of(output_batch(self._rows, self._info.output_schema, RecordForm.ROWS))
            self._rows.clear()

    def _without_late(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drops late records as Spark does.

        A record is late at or before the watermark of the previous batch's timers. Other than in Spark, a record too
        far ahead of the processing time is late, too.
        """
        column, ahead_ms = self._info.timestamp_column, self._info.max_ahead_ms
        if self._logic.time_mode is not TimeMode.EVENT_TIME or column is None:
            return batch
        in_reach = batch if ahead_ms is None else up_to_ms(batch, column, self._time.processing_ms + ahead_ms)
        self.counts["late_records"] += batch.num_rows - in_reach.num_rows
        if not self._time.has_watermark:
            return in_reach
        watermark_ms = self._time.watermark_ms
        in_time = [at_ms is None or at_ms > watermark_ms for at_ms in timestamps_ms(in_reach, column)]
        self.counts["late_records"] += in_time.count(False)
        return in_reach if all(in_time) else in_reach.filter(pa.array(in_time))
