"""The operator that runs a KeyedProcessFunction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from keyscale.state.doors.keyed import OperatorStateBackend, TimerService

from ..errors import OutputTypeError
from ..functions.process_function import (
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    RuntimeContext,
    row_type,
)
from .column_values import BatchSize, batch_of, rows_that_pass, timestamps_ms, tuples_of
from .failed_records import FailedRecords, OutputCheck, coordinates_of
from .failures import exception_line, results_of, user_code
from .operator_contract import KEY_GROUP_COLUMN, Operator, OperatorLogic, SideBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from keyscale.state.doors.keyed import KeyedStateBackend, NextTimers

    from ..functions.broadcast_function import KeyedBroadcastProcessFunction
    from ..functions.process_function import KeyedCoProcessFunction, Row
    from ..functions.subtask_info import SubtaskInfo
    from .operator_contract import OutputBatch

_NO_ROW: Final = object()


@dataclass(frozen=True, slots=True)
class Process(OperatorLogic):
    """The logic of an operator that runs a user's function.

    Attributes:
        function: The function.
        dead_letters: The side output for records that the function fails on; None if such a record fails the batch.
    """

    function: KeyedProcessFunction
    dead_letters: str | None = None

    @property
    def uses_timers(self) -> bool:
        return type(self.function).on_timer is not KeyedProcessFunction.on_timer

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> ProcessOperator:
        return self.start_with(state, info, OperatorStateBackend())

    def start_with(
        self, state: KeyedStateBackend, info: SubtaskInfo, operator_state: OperatorStateBackend
    ) -> ProcessOperator:
        return ProcessOperator(self.function, state, info, operator_state, self.dead_letters)


class Results:
    """Collects a function's output records until a batch is complete."""

    def __init__(self, info: SubtaskInfo) -> None:
        self._schema = info.output_schema
        self._side_schemas = info.side_outputs
        self._main: list[Any] = []
        self._passing: pa.RecordBatch | None = None
        self._size = BatchSize()
        self._origins: list[int] = []  # for each result, the index of its record in the batch
        self._coordinates: Callable[[int], str] | None = None
        self._passed: list[int] = []  # indexes into `_passing`, while all results are unchanged rows of that batch
        self.side: dict[str, list[Any]] = {tag: [] for tag in info.side_outputs}

    def come_from(self, batch: pa.RecordBatch, coordinates: Callable[[int], str]) -> None:
        """Sets the input batch of the results up to the next `rest`.

        Rows emitted unchanged need no conversion. `coordinates` says where the record with an index comes from.
        """
        self._passing = rows_that_pass(batch, self._schema)
        self._coordinates = coordinates

    @property
    def passes_rows(self) -> bool:
        """Whether unchanged rows of the input batch are output without conversion."""
        return self._passing is not None

    def come_from_timers(self) -> None:
        """Tells that the next results come from no record."""
        self._coordinates = None

    def add(self, produced: Iterable[Any] | None, row: Any = _NO_ROW, at: int = 0) -> bool:
        """Adds the results of a call.

        Args:
            produced: The results.
            row: The row that the call was given.
            at: The index of the row in its batch.

        Returns:
            Whether the results fill a batch.
        """
        if produced is not None:
            main = self._main
            for result in _records_of(produced):
                if result is row and not main and self._passing is not None:
                    self._passed.append(at)
                else:
                    if self._passed:
                        self._origins.extend(self._passed)
                        main.extend(tuples_of(self._take_passed(), self._schema.names))
                    main.append(result)
                    self._origins.append(at)
        rows = self._size.rows
        return len(self._main) + len(self._passed) >= rows or (
            bool(self.side) and any(len(records) >= rows for records in self.side.values())
        )

    def rest(self) -> Iterator[OutputBatch]:
        """Yields the remaining results."""
        if self._passed:
            yield self._take_passed()
        if self._main:
            yield self._size.of(self._converted())
            self._main.clear()
            self._origins.clear()
        for tag, records in self.side.items():
            if records:
                yield SideBatch(tag, self._size.of(batch_of(records, self._side_schemas[tag])))
                records.clear()

    def _converted(self) -> pa.RecordBatch:
        try:
            return batch_of(self._main, self._schema)
        except OutputTypeError as error:
            if self._coordinates is None:
                raise
            check = OutputCheck(self._schema)
            for result, at in zip(self._main, self._origins, strict=True):
                try:
                    check.check([result])
                except OutputTypeError as its_error:
                    raise OutputTypeError(f"{its_error}, {self._coordinates(at)}") from None
            raise OutputTypeError(str(error)) from None

    def _take_passed(self) -> pa.RecordBatch:
        assert self._passing is not None  # noqa: S101 - no row passes otherwise
        passed = self._passing.take(pa.array(self._passed, pa.int64()))
        self._passed.clear()
        return passed


def _records_of(produced: Iterable[Any]) -> Iterator[Any]:
    if isinstance(produced, (dict, str)):  # a dict is a single record, and a loop over it yields its names
        raise _not_records(produced)
    try:
        return iter(produced)
    except TypeError:
        refusal = _not_records(produced)
    raise refusal


def _not_records(produced: object) -> OutputTypeError:
    name = type(produced).__name__
    article = "an" if name[0] in "aeiou" else "a"
    return OutputTypeError(f"the function returned {article} {name}; it yields records, or returns a list of them")


class ProcessOperator(Operator):
    """A user's function running in one task."""

    def __init__(
        self,
        function: KeyedProcessFunction | KeyedBroadcastProcessFunction | KeyedCoProcessFunction,
        state: KeyedStateBackend,
        info: SubtaskInfo,
        operator_state: OperatorStateBackend,
        dead_letters: str | None = None,
    ) -> None:
        self._function: Any = function
        self._dead_letter_tag = dead_letters
        self.failed: FailedRecords = FailedRecords(info, dead_letters)
        self._check = OutputCheck(info.output_schema)
        self._side_checks = {tag: OutputCheck(schema) for tag, schema in info.side_outputs.items()}
        self._record = self._at = 0
        self._batch: tuple[pa.RecordBatch, SubtaskInfo] | None = None
        self._state = state
        self._info = info
        self._row_type = row_type(info.input_columns)
        self._timers = TimerService(state)
        self._results = Results(info)
        self._single = len(info.key_columns) == 1
        with user_code():
            # A failed record's changes of keyed state are undone; changes of operator state cannot be.
            function.open(RuntimeContext(state, info, operator_state if dead_letters is None else None))

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        yield from self._run(self._function.process_element, batch, self._info)

    def _run(
        self,
        process_element: Callable[[Row, Any], Iterable[Any] | None],
        batch: pa.RecordBatch,
        info: SubtaskInfo,
        kind: type[Row] | None = None,
    ) -> Iterator[OutputBatch]:
        """Runs a function over a batch of the first or second input.

        `info` and `kind` describe that input.
        """
        results = self._results
        results.come_from(batch.select(info.input_columns), lambda at: coordinates_of(batch, at, info))
        self._batch = batch, info
        process = self._guarded(process_element) if self.failed.keeps_batch else process_element
        with user_code(self._coordinates), results_of(process_element):
            for at, (row, context) in enumerate(self._records(batch, info, kind or self._row_type)):
                self._at = at
                if results.add(process(row, context), row, at):
                    yield from results.rest()
        with results_of(process_element):
            yield from results.rest()

    def fire(self) -> Iterator[OutputBatch]:
        context = self._timer_context()
        self._results.come_from_timers()
        on_timer = self._function.on_timer
        with user_code(), results_of(on_timer):
            for domain, timer in self._timers.due():
                self._state.set_current_key(timer.key_group, timer.key)
                context.current_key = timer.key[0] if self._single else timer.key
                context.timestamp = timer.timestamp_ms
                context.time_domain = domain
                if self._results.add(on_timer(timer.timestamp_ms, context)):
                    yield from self._results.rest()
        with results_of(on_timer):
            yield from self._results.rest()

    def next_times(self) -> NextTimers:
        return self._timers.next_times()

    def close(self) -> None:
        with user_code():
            self._function.close()

    def divert(self, batch: pa.RecordBatch, row: int, error: Exception) -> None:
        if self._dead_letter_tag is not None:
            values = (batch.column(name)[row].as_py() for name in self._info.input_columns)
            self._results.side[self._dead_letter_tag].append((*values, exception_line(error)))

    def _guarded(
        self, process_element: Callable[[Row, Any], Iterable[Any] | None]
    ) -> Callable[[Row, Any], Iterable[Any] | None]:
        """Returns a function that undoes the effects of a failed record.

        Only the dead letter stays.
        """
        side = self._results.side

        def process(row: Row, context: Any) -> list[Any]:
            self._state.mark()
            self._info.metrics.mark()
            before = {tag: len(records) for tag, records in side.items()}
            try:
                produced = list(_records_of(process_element(row, context) or ()))
                self._check.check([result for result in produced if result is not row or not self._results.passes_rows])
                for tag, first in before.items():
                    self._side_checks[tag].check(side[tag][first:])
            except Exception as error:  # noqa: BLE001 - a user's code may raise anything
                assert self._batch is not None  # noqa: S101 - set by _run
                batch, info = self._batch
                self.failed.note(error, batch, self._at, info)
                self._state.undo()
                self._info.metrics.undo()
                for tag, records in side.items():
                    del records[before[tag] :]
                self.divert(batch, self._at, error)
                return []
            return produced

        return process

    def _context(self) -> ProcessContext:
        return ProcessContext(self._timers, self._results.side)

    def _timer_context(self) -> OnTimerContext:
        return OnTimerContext(self._timers, self._results.side)

    def _coordinates(self) -> str:
        group = self._state.current_key_group
        where = f"at record {self._record} of subtask {self._info.subtask} in its batch, key group {group}"
        return where if self._batch is None else f"{where}, {coordinates_of(self._batch[0], self._at, self._batch[1])}"

    def _records(
        self, batch: pa.RecordBatch, info: SubtaskInfo, kind: type[Row]
    ) -> Iterator[tuple[Row, ProcessContext]]:
        """Yields each record after making its key the current key."""
        context = self._context()
        columns = {name: batch.column(name) for name in info.input_columns}
        values = {name: column.to_pylist() for name, column in columns.items()}
        key_columns = [columns[name] for name in info.key_columns]
        keys = zip(*[values[name] for name in info.key_columns], strict=True)
        rows = map(kind, zip(*values.values(), strict=True))
        times = (
            [None] * batch.num_rows if info.timestamp_column is None else timestamps_ms(batch, info.timestamp_column)
        )
        # Keys come first: a row's key is current before anything else of the row is read.
        others = [column for name, column in columns.items() if name not in info.key_columns]
        current = self._state.each_key(batch.column(KEY_GROUP_COLUMN), key_columns, keys, others)
        single = self._single
        for key, row, timestamp in zip(current, rows, times, strict=True):
            self._record += 1
            context.current_key = key[0] if single else key
            context.timestamp = timestamp
            yield row, context
