"""Each operator reports the earliest timers that remain, by event time and by processing time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale import KeyedProcessFunction, SessionWindows, TimeDomain, TumblingWindows
from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.jobs.functions.subtask_info import SubtaskInfo
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN, SubtaskProgress, run_subtask
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.operators.window_contents import Reduced
from keyscale.jobs.operators.window_operator import Windowing
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.jobs.transform_with_state.time_mode import TimeMode
from keyscale.state.doors.keyed import BatchClock, NextTimers
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keyed.backend import KeyedStateBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import OnTimerContext, ProcessContext, Row
    from keyscale.jobs.operators.operator_contract import OperatorLogic

# ruff: noqa: N802, N803, ARG002 - Spark's names, and arguments that are not read

SCHEMA = pa.schema([("id", pa.string()), ("at", pa.int64())])
WINDOWED = pa.schema(
    [("id", pa.string()), ("window_start", pa.int64()), ("window_end", pa.int64()), ("at", pa.int64())]
)


class Reminders(KeyedProcessFunction):
    """Registers two timers for each record."""

    def process_element(self, row: Row, context: ProcessContext) -> None:
        context.timer_service().register_event_time_timer(row.at + 10)
        context.timer_service().register_processing_time_timer(row.at + 2000)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> None: ...


class Alarms(StatefulProcessor):
    """Registers a timer for each record."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.handle.registerTimer(row.at + 10)
        return iter(())


def first(left: Any, _right: Any) -> Any:
    return left


def windows(assigner: Any, **options: Any) -> Windowing:
    return Windowing(assigner, Reduced(first, SCHEMA), **options)


BY_CLOCK = TimeDomain.PROCESSING


@pytest.mark.parametrize(
    ("logic", "before", "after"),
    [
        (Process(Reminders(), None), NextTimers(30, 2020), NextTimers(60, 2020)),
        (Deduplicate(None), NextTimers(), NextTimers()),
        (TransformWithState(Alarms(), TimeMode.EVENT_TIME), NextTimers(29), NextTimers(59)),
        (TransformWithState(Alarms(), TimeMode.PROCESSING_TIME), NextTimers(None, 1030), NextTimers(None, 1030)),
        (windows(TumblingWindows(40)), NextTimers(39), NextTimers(79)),
        (windows(TumblingWindows(40), allowed_lateness_ms=7), NextTimers(39), NextTimers(46)),
        (windows(TumblingWindows(40), early_every_ms=300), NextTimers(39, 1200), NextTimers(79, 1200)),
        (windows(TumblingWindows(40, time_domain=BY_CLOCK)), NextTimers(None, 1039), NextTimers(None, 1039)),
        (windows(SessionWindows(15)), NextTimers(34), NextTimers(64)),
    ],
    ids=[
        "process",
        "deduplicate",
        "event time",
        "processing time",
        "window",
        "late window",
        "early window",
        "window by clock",
        "session",
    ],
)
def test_the_earliest_timers_that_remain_are_reported(
    logic: OperatorLogic, before: NextTimers, after: NextTimers
) -> None:
    by_clock = isinstance(logic, TransformWithState) and logic.time_mode is TimeMode.PROCESSING_TIME
    clock = BatchClock(processing_time_ms=1000)
    state = KeyedStateBackend(HeapEngine(), pa.schema([("id", pa.string())]), clock)
    output = WINDOWED if isinstance(logic, Windowing) else SCHEMA
    info = SubtaskInfo(OperatorUid("tested"), SubtaskIndex(0), 1, 8, Attempt(1), ("id", "at"), ("id",), "at", output)
    times = [1050, 1020] if by_clock else [50, 20]
    records = pa.record_batch({"id": ["a", "b"], "at": times, KEY_GROUP_COLUMN: pa.array([1, 5], pa.int32())})

    def next_timers(batches: list[pa.RecordBatch], watermark_ms: int | None) -> NextTimers:
        progress = SubtaskProgress()
        list(run_subtask(logic, state, info, batches, progress=progress, watermark_ms=watermark_ms))
        return progress.next_timers

    assert next_timers([records], None if by_clock else 5) == before
    assert next_timers([], None if by_clock else 40) == after
