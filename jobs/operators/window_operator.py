"""The operator that assigns records to windows and emits due results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.state.doors.keyed import MapStateDescriptor, TimeDomain, TimerService

from ..functions.process_function import row_type
from ..functions.windows import TIME_MS_MAX, WINDOW_TYPE, SessionWindows, Window, merged
from .column_values import timestamps_ms, tuples_of
from .failed_records import FailedRecords, OutputCheck, coordinates_of
from .failures import results_of, user_code
from .operator_contract import KEY_GROUP_COLUMN, Operator, OperatorLogic
from .process_operator import Results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keyscale.state.doors.keyed import KeyedStateBackend, NextTimers

    from ..functions.process_function import Row
    from ..functions.subtask_info import SubtaskInfo
    from ..functions.windows import WindowAssigner
    from .operator_contract import OutputBatch
    from .window_contents import ContentsLogic

_TIME_MS_MIN = -TIME_MS_MAX - 1
WINDOW_COLUMNS = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64())])


@dataclass(frozen=True, slots=True)
class Windowing(OperatorLogic):
    """The logic of an operator over windows.

    Attributes:
        assigner: Assigns records to windows.
        contents: The contents of windows.
        allowed_lateness_ms: How long a complete window accepts late records; it fires again for each.
        late_output: The side output for records that are too late for their windows; None to drop them.
        early_every_ms: How often, in processing time, an incomplete window fires early; None for never.
    """

    assigner: WindowAssigner
    contents: ContentsLogic
    allowed_lateness_ms: int = 0
    late_output: str | None = None
    early_every_ms: int | None = None

    @property
    def uses_timers(self) -> bool:
        return True

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> WindowingOperator:
        return WindowingOperator(self, state, info)


class WindowingOperator(Operator):
    """Windows running in one task."""

    def __init__(self, logic: Windowing, state: KeyedStateBackend, info: SubtaskInfo) -> None:
        self._logic = logic
        self._state = state
        self._info = info
        self._domain = logic.assigner.time_domain
        self._row_type = row_type(info.input_columns)
        self._results = Results(info)
        self.failed: FailedRecords = FailedRecords(info)
        self._check = OutputCheck(info.output_schema)
        self._batch: pa.RecordBatch | None = None
        self._at = 0
        self._timers = TimerService(state, WINDOW_TYPE)
        event, self._processing = self._timers.queues
        self._ends = event if self._domain is TimeDomain.EVENT else self._processing
        names = tuple(info.output_schema.names[len(info.key_columns) + len(WINDOW_COLUMNS.names) :])
        with user_code():
            self._contents = logic.contents.start(state, info, names)
        self._sessions = None
        if isinstance(logic.assigner, SessionWindows):
            self._sessions = state.state(MapStateDescriptor("window_sessions", WINDOW_TYPE, pa.bool_()))

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        info = self._info
        groups, columns = batch.column(KEY_GROUP_COLUMN), batch.select(info.key_columns)
        keys = self._state.each_key(groups, columns, tuples_of(batch, info.key_columns))
        rows = map(self._row_type, tuples_of(batch, info.input_columns))
        self._batch = batch
        take = self._take_or_drop if self.failed.keeps_batch else self._take
        with user_code(self._coordinates), results_of(self._logic.contents.result_function):
            for at, (key, row, time_ms) in enumerate(zip(keys, rows, self._times_of(batch), strict=True)):
                self._at = at
                if self._results.add(take(key, row, time_ms)):
                    yield from self._results.rest()
        yield from self._rest()

    def fire(self) -> Iterator[OutputBatch]:
        with user_code(), results_of(self._logic.contents.result_function):
            for domain, timer in self._timers.due():
                self._state.set_current_key(timer.key_group, timer.key)
                window = Window(**timer.namespace)
                if self._results.add(self._on_timer(domain, timer.timestamp_ms, timer.key, window)):
                    yield from self._results.rest()
        yield from self._rest()

    def _rest(self) -> Iterator[OutputBatch]:
        with results_of(self._logic.contents.result_function):
            yield from self._results.rest()

    def next_times(self) -> NextTimers:
        return self._timers.next_times()

    def _coordinates(self) -> str:
        assert self._batch is not None  # noqa: S101 - records are processed
        return coordinates_of(self._batch, self._at, self._info)

    def _take_or_drop(self, key: tuple[Any, ...], row: Row, time_ms: int | None) -> list[Any]:
        """Adds a record to its windows; a failed record has no effect."""
        self._state.mark()
        late_before = self.counts["late_records"]
        try:
            produced = self._take(key, row, time_ms)
            self._check.check(produced)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            assert self._batch is not None  # noqa: S101 - records are processed
            self.failed.note(error, self._batch, self._at)
            self._state.undo()
            self.counts["late_records"] = late_before
            return []
        return produced

    def _take(self, key: tuple[Any, ...], row: Row, time_ms: int | None) -> list[Any]:
        """Adds a record to its windows.

        Returns the results of windows that are already complete.
        """
        windows = None if time_ms is None else self._windows_of(time_ms)
        if windows is None:
            # Too late for its windows, too far ahead of the clock, or without event time.
            self.counts["late_records"] += 1
            if self._logic.late_output is not None:
                self._results.side[self._logic.late_output].append(row)
            return []
        produced = []
        for window in windows:
            self._contents.add(window, row)
            if window.max_timestamp <= self._now_ms:
                produced += self._output_of(key, window)
            else:
                self._ends.register(window.max_timestamp, window.stored())
                self._register_early(window)
            if self._lateness_ms:
                self._ends.register(self._last_ms(window), window.stored())
        return produced

    def _windows_of(self, time_ms: int) -> list[Window] | None:
        """Returns the windows that accept a record.

        Returns None if the record is too late for all of its windows, or so near to an end of time that its windows
        have no stored form.

        If windows slide by more than their size, a record between two windows is in no window. As in Flink, it is late
        only if it is as old as a late record would be.
        """
        windows = self._logic.assigner.assign(time_ms)
        if any(window.start < _TIME_MS_MIN or window.end > TIME_MS_MAX for window in windows):
            return None
        if self._sessions is None:
            open_windows = [window for window in windows if not self._is_over(window)]
            return open_windows if open_windows or not self._is_late(time_ms, windows) else None
        known = [Window(**each) for each in self._sessions.keys()]  # noqa: SIM118 - a map state, not a dict
        session, touched = merged(windows[0], known)
        if self._is_over(session):
            return None
        if touched != [session]:
            for each in touched:
                self._forget_timers(each)
                self._sessions.remove(each.stored())
            self._contents.merge(session, touched)
            self._sessions.put(session.stored(), True)
        return [session]

    def _on_timer(self, domain: TimeDomain, time_ms: int, key: tuple[Any, ...], window: Window) -> list[Any]:
        is_end = domain is self._domain and time_ms == window.max_timestamp
        is_over = domain is self._domain and time_ms == self._last_ms(window)
        produced = []
        if is_end or not is_over:
            produced = self._output_of(key, window)
            if produced and not is_end:
                self._register_early(window)
        if is_over:
            self._contents.clear(window)
            if self._sessions is not None:
                self._sessions.remove(window.stored())
        return produced

    def _output_of(self, key: tuple[Any, ...], window: Window) -> list[Any]:
        results = self._contents.results(key[0] if len(key) == 1 else key, window)
        return [(*key, window.start, window.end, *result) for result in results or ()]

    def _register_early(self, window: Window) -> None:
        every_ms = self._logic.early_every_ms
        if every_ms is not None and window.max_timestamp > self._now_ms:
            now_ms = self._timers.current_processing_time()
            early_ms = now_ms - now_ms % every_ms + every_ms
            if self._domain is TimeDomain.EVENT or early_ms < window.max_timestamp:
                self._processing.register(early_ms, window.stored())

    def _forget_timers(self, window: Window) -> None:
        """Deletes the timers of a window.

        Early timers stay: they find an empty window and are not registered again.
        """
        self._ends.delete(window.max_timestamp, window.stored())
        self._ends.delete(self._last_ms(window), window.stored())

    def _is_over(self, window: Window) -> bool:
        return self._last_ms(window) <= self._now_ms

    def _is_late(self, time_ms: int, windows: Sequence[Window]) -> bool:
        return bool(windows) or time_ms + self._lateness_ms <= self._now_ms

    def _last_ms(self, window: Window) -> int:
        """Returns the last time at which a window is kept.

        A lateness beyond the end of time keeps the window until the end of time.
        """
        return min(window.max_timestamp + self._lateness_ms, TIME_MS_MAX)

    @property
    def _now_ms(self) -> int:
        event = self._domain is TimeDomain.EVENT
        return self._timers.current_watermark() if event else self._timers.current_processing_time()

    @property
    def _lateness_ms(self) -> int:
        return self._logic.allowed_lateness_ms if self._domain is TimeDomain.EVENT else 0

    def _times_of(self, batch: pa.RecordBatch) -> list[int | None]:
        if self._domain is TimeDomain.PROCESSING:
            return [self._timers.current_processing_time()] * int(batch.num_rows)
        assert self._info.timestamp_column is not None  # noqa: S101 - checked when the window was declared
        times_ms = timestamps_ms(batch, self._info.timestamp_column)
        if self._info.max_ahead_ms is None:
            return times_ms
        until_ms = self._timers.current_processing_time() + self._info.max_ahead_ms
        return [None if time_ms is None or time_ms > until_ms else time_ms for time_ms in times_ms]
