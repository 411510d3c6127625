"""Rolling aggregations of a keyed stream.

Each record updates its key's value, which is emitted.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.state.doors.keyed import ValueStateDescriptor
from keyscale.state.doors.values import SerializationError, column_of

from ..functions.process_function import row_type
from .column_values import batch_of, tuple_of, tuples_of
from .failed_records import FailedRecords, OutputCheck, coordinates_of
from .failures import results_of, user_code
from .operator_contract import KEY_GROUP_COLUMN, Operator, OperatorLogic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keyscale.state.doors.keyed import AggregateFunction, KeyedStateBackend, Ttl

    from ..functions.process_function import Row
    from ..functions.subtask_info import SubtaskInfo


@dataclass(frozen=True, slots=True)
class Reduce(OperatorLogic):
    """The logic of an operator that reduces each key's records into one.

    Attributes:
        function: Combines the key's reduced record and a further record into the new reduced record.
        ttl: How long a reduced record is kept after its key's last record; None to keep it forever.
    """

    function: Callable[[Row, Row], Any]
    ttl: Ttl | None

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> ReduceOperator:
        return ReduceOperator(self, state, info)


class ReduceOperator(Operator):
    """A reduction running in one task.

    Each key is read and written once per batch, however many records it has.
    """

    def __init__(self, logic: Reduce, state: KeyedStateBackend, info: SubtaskInfo) -> None:
        self._reduce = logic.function
        self._info = info
        self._schema = info.output_schema
        self._row_type = row_type(tuple(self._schema.names))
        self.failed: FailedRecords = FailedRecords(info)
        self._check = OutputCheck(self._schema)
        stored = pa.struct([pa.field(field.name, field.type) for field in self._schema])
        self._reduced = state.state(ValueStateDescriptor("reduced", stored, ttl=logic.ttl))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        names = tuple(self._schema.names)
        outputs: list[Row] = []
        at = 0
        copied = deepcopy if any(map(pa.types.is_nested, self._schema.types)) else _as_it_is

        def reduced_at(before: Row, row: Row) -> Row | None:
            try:
                reduced = self._row_type(tuple_of(self._reduce(copied(before), row), names))
                if self.failed.keeps_batch:
                    self._check.check([reduced])
            except Exception as error:
                if not self.failed.keeps_batch:
                    raise
                self.failed.note(error, batch, at)
                return None
            return reduced

        def fold(current: pa.Array, groups: Any) -> tuple[pa.Array, list[bool]]:
            held = self._rows(current)
            are_written = [False] * len(held)
            rows = map(self._row_type, tuples_of(batch, names))
            nonlocal at
            for at, (group, row) in enumerate(zip(groups.tolist(), rows, strict=True)):  # noqa: B007 - for errors
                before = held[group]
                reduced = row if before is None else reduced_at(before, row)
                if reduced is not None:
                    held[group], are_written[group] = reduced, True
                    outputs.append(reduced)
            columns = batch_of(held, self._schema).columns
            return pa.StructArray.from_arrays(columns, names=list(names)), are_written

        keys = [batch.column(name) for name in self._info.key_columns]
        with user_code(lambda: coordinates_of(batch, at, self._info)), results_of(self._reduce):
            self._reduced.update_many(batch.column(KEY_GROUP_COLUMN), keys, fold)
        with results_of(self._reduce):
            reduced = batch_of(outputs, self._schema)
        yield reduced

    def _rows(self, stored: pa.Array) -> list[Row | None]:
        """Returns the stored values; None for each key without one."""
        fields = zip(*(column.to_pylist() for column in stored.flatten()), strict=True)
        present = stored.is_valid().to_pylist()
        return [self._row_type(row) if there else None for row, there in zip(fields, present, strict=True)]


@dataclass(frozen=True, slots=True)
class Aggregate(OperatorLogic):
    """The logic of an operator that aggregates each key's records.

    Attributes:
        function: The aggregation.
        accumulator: The accumulator's type.
        ttl: How long an accumulator is kept after its key's last record; None to keep it forever.
    """

    function: AggregateFunction
    accumulator: pa.DataType
    ttl: Ttl | None

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> AggregateOperator:
        return AggregateOperator(self, state, info)


class AggregateOperator(Operator):
    """An aggregation running in one task.

    Each key is read and written once per batch.
    """

    def __init__(self, logic: Aggregate, state: KeyedStateBackend, info: SubtaskInfo) -> None:
        self._function = logic.function
        self._type = logic.accumulator
        self._info = info
        self._row_type = row_type(info.input_columns)
        self.failed: FailedRecords = FailedRecords(info)
        results = pa.schema(list(info.output_schema)[len(info.key_columns) :])
        self._emits_nested = any(map(pa.types.is_nested, results.types))
        self._check = OutputCheck(results)
        self._accumulator_check = OutputCheck(pa.schema([("accumulator", logic.accumulator)]))
        self._accumulators = state.state(ValueStateDescriptor("accumulator", logic.accumulator, ttl=logic.ttl))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        function = self._function
        key_columns = self._info.key_columns
        names = tuple(self._info.output_schema.names[len(key_columns) :])
        results: list[Any] = [None] * batch.num_rows
        rows = list(map(self._row_type, tuples_of(batch, self._info.input_columns)))
        at = 0
        copied = deepcopy if self.failed.keeps_batch or self._emits_nested else _as_it_is

        def added(row: Row, before: Any) -> tuple[Any, Any] | None:
            accumulator = function.create_accumulator() if before is None else copied(before)
            try:
                changed = function.add(row, accumulator)
                result = tuple_of(function.get_result(changed), names)
                if self.failed.keeps_batch:
                    self._check.check([result])
                    self._accumulator_check.check([(changed,)])
            except Exception as error:
                if not self.failed.keeps_batch:
                    raise
                self.failed.note(error, batch, at)
                return None
            return changed, result

        def fold(current: pa.Array, groups: Any) -> tuple[pa.Array, list[bool]]:
            nonlocal at
            held = current.to_pylist()
            are_written = [False] * len(held)
            # Key by key: an accumulator may be an object that every `add` changes, and it is stored only at the end.
            order = sorted(enumerate(groups.tolist()), key=itemgetter(1))
            for group, occurrences in groupby(order, key=itemgetter(1)):
                for at, _ in occurrences:
                    if (after := added(rows[at], held[group])) is not None:
                        held[group], results[at] = after
                        are_written[group] = True
            return self._stored(held), are_written

        keys = [batch.column(name) for name in key_columns]
        with user_code(lambda: coordinates_of(batch, at, self._info)), results_of(function.get_result):
            self._accumulators.update_many(batch.column(KEY_GROUP_COLUMN), keys, fold)
        keyed = zip(tuples_of(batch, key_columns), results, strict=True)
        with results_of(function.get_result):
            output = batch_of([key + result for key, result in keyed if result is not None], self._info.output_schema)
        yield output

    def _stored(self, accumulators: list[Any]) -> pa.Array:
        try:
            return column_of(accumulators, self._type)
        except SerializationError as error:
            reason = str(error)
        # Outside the handler: the error's context may quote a value.
        raise SerializationError(f"the accumulator is declared {self._type}: {reason}")


def _as_it_is(value: Any) -> Any:
    """Returns the value itself, in place of a copy for the function.

    A function may change its value in place. A copy keeps the value before, which was emitted, or which a failed record
    leaves as it was.
    """
    return value
