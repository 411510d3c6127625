"""The operator that runs a KeyedBatchFunction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from keyscale.state.doors.keyed import OperatorStateBackend
from keyscale.state.doors.values import exact_cast, other_names

from ..errors import OutputTypeError
from ..functions.batch_function import KeyedBatch
from ..functions.process_function import RuntimeContext
from .column_values import output_column
from .failures import results_of, user_code
from .operator_contract import KEY_GROUP_COLUMN, Operator, OperatorLogic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state.doors.keyed import KeyedStateBackend

    from ..functions.batch_function import KeyedBatchFunction
    from ..functions.subtask_info import SubtaskInfo


@dataclass(frozen=True, slots=True)
class ProcessBatch(OperatorLogic):
    """The logic of an operator that runs a user's function over batches."""

    function: KeyedBatchFunction

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> ProcessBatchOperator:
        return self.start_with(state, info, OperatorStateBackend())

    def start_with(
        self, state: KeyedStateBackend, info: SubtaskInfo, operator_state: OperatorStateBackend
    ) -> ProcessBatchOperator:
        return ProcessBatchOperator(self.function, state, info, operator_state)


class ProcessBatchOperator(Operator):
    """A user's batch function running in one task."""

    def __init__(
        self,
        function: KeyedBatchFunction,
        state: KeyedStateBackend,
        info: SubtaskInfo,
        operator_state: OperatorStateBackend,
    ) -> None:
        self._function = function
        self._info = info
        with user_code():
            function.open(RuntimeContext(state, info, operator_state))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        info = self._info
        keyed = KeyedBatch(
            records=batch.select(list(info.input_columns)),
            key_groups=batch.column(KEY_GROUP_COLUMN),
            keys=[batch.column(name) for name in info.key_columns],
        )
        with user_code(), results_of(self._function.process_batch):
            result = self._function.process_batch(keyed)
            if result is None:
                return
            parts = [result] if isinstance(result, (pa.RecordBatch, pa.Table)) else result
            for part in parts:
                yield from conformed(part, info.output_schema)

    def close(self) -> None:
        with user_code():
            self._function.close()


def conformed(part: pa.RecordBatch | pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Converts a result to batches with the columns of a schema.

    Columns and types are exactly the schema's.

    Raises:
        OutputTypeError: The result is not a batch, lacks a column, or has values that do not fit the declared type.
    """
    if not isinstance(part, (pa.RecordBatch, pa.Table)):
        raise OutputTypeError(f"a result is a {type(part).__name__}; return RecordBatches or Tables")
    if not set(schema.names) <= set(part.schema.names):
        raise OutputTypeError(f"a result comes {other_names(part.schema.names, schema.names, 'column')}")
    table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
    columns = [output_column(exact_cast, table.column(field.name), field) for field in schema]
    return [batch for batch in pa.Table.from_arrays(columns, schema=schema).to_batches() if batch.num_rows]
