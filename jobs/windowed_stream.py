"""Keyed streams cut into windows: how windows are written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobs.aggregate import keyed_schema
from jobs.errors import InvalidTopologyError
from jobs.output_schema import arrow_schema
from jobs.window_contents import Aggregated, Collected, Reduced
from jobs.window_operator import WINDOW_COLUMNS, Windowing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from jobs.functions import OutputTag, Row
    from jobs.keyed_stream import KeyedStream
    from jobs.output_schema import Schema
    from jobs.stream import DataStream
    from jobs.window_contents import ContentsLogic, ProcessWindowFunction
    from jobs.windows import WindowAssigner
    from state.descriptors import AggregateFunction


class WindowedStream:
    """A keyed stream cut into windows. Made by `KeyedStream.window`.

    A window is put out when it is complete: when the watermark, or the clock, has reached its last millisecond. Each output record
    has the key's columns, `window_start` and `window_end` (milliseconds since the epoch) and the declared columns.
    """

    def __init__(self, stream: KeyedStream, assigner: WindowAssigner) -> None:
        self._stream = stream
        self._assigner = assigner
        self._allowed_lateness_ms = 0
        self._late_tag: OutputTag | None = None
        self._early_every_ms: int | None = None

    def allowed_lateness(self, lateness_ms: int) -> Self:
        """Keeps complete windows for so long: each record that comes late puts its window out again.

        Raises:
            InvalidTopologyError: It is negative.
        """
        if lateness_ms < 0:
            message = f"the allowed lateness cannot be {lateness_ms} ms"
            raise InvalidTopologyError(message)
        self._allowed_lateness_ms = lateness_ms
        return self

    def side_output_late_data(self, tag: OutputTag) -> Self:
        """Puts records that no window takes any more, and those without an event time, into a side output.

        Args:
            tag: With the schema of this stream; see `OutputTag`.
        """
        self._late_tag = tag
        return self

    def early_firing(self, every_ms: int) -> Self:
        """Puts windows out, as they are, by the clock, as long as they are not complete.

        Raises:
            InvalidTopologyError: The interval is not positive.
        """
        if every_ms <= 0:
            message = f"windows cannot fire every {every_ms} ms"
            raise InvalidTopologyError(message)
        self._early_every_ms = every_ms
        return self

    def reduce(self, function: Callable[[Row, Row], Any]) -> DataStream:
        """Reduces the records of each window into one; its columns but the key's are put out. Give it a `.uid(...)`."""
        whole = self._stream.schema
        key = self._stream.key_columns
        return self._operator(Reduced(function, whole), pa.schema([field for field in whole if field.name not in key]))

    def aggregate(self, function: AggregateFunction, *, accumulator: pa.DataType, output: Schema) -> DataStream:
        """Folds the records of each window into an accumulator. Give the result a `.uid(...)`.

        Args:
            function: As of `KeyedStream.aggregate`; `merge` joins the accumulators of sessions that become one.
            accumulator: The accumulator's Arrow type.
            output: The columns of `get_result`.
        """
        return self._operator(Aggregated(function, accumulator), arrow_schema(output))

    def process(self, function: ProcessWindowFunction, *, output: Schema) -> DataStream:
        """Keeps all records of each window for a function that sees them at once. Give the result a `.uid(...)`."""
        return self._operator(Collected(function, self._stream.schema), arrow_schema(output))

    def _operator(self, contents: ContentsLogic, results: pa.Schema) -> DataStream:
        logic = Windowing(
            self._assigner,
            contents,
            allowed_lateness_ms=self._allowed_lateness_ms,
            late_output=None if self._late_tag is None else self._late_tag.name,
            early_every_ms=self._early_every_ms,
        )
        columns = keyed_schema(WINDOW_COLUMNS, results)
        schema = keyed_schema(self._stream.key_schema, columns)
        return self._stream.windowed(logic, schema, () if self._late_tag is None else (self._late_tag,))
