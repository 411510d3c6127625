"""Functions over whole Arrow batches of a keyed stream: the fast path, without a Python object a record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from jobs.errors import OutputTypeError
from jobs.functions import RuntimeContext
from jobs.runtime.body import KEY_GROUP_COLUMN, OperatorBody, OperatorLogic
from jobs.runtime.failures import user_code
from state.operator_state import OperatorStateBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jobs.runtime.body import SubtaskFacts
    from state.keyed import KeyedStateBackend

BatchResult: TypeAlias = "pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None"
"""What a batch function may return; a generator is an iterable."""


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """Some records of one subtask, as columns.

    Every columnar method of a state takes `key_groups` and `keys` as they are here: `state.get_many(batch.key_groups,
    batch.keys)`. Hand on these very objects: the keys are then encoded once for all states.

    Attributes:
        records: The stream's columns, in the order of arrival.
        key_groups: Each row's key group.
        keys: Each row's key: one column for each key column.
    """

    records: pa.RecordBatch
    key_groups: pa.Array
    keys: list[pa.Array]

    @property
    def num_rows(self) -> int:
        return int(self.records.num_rows)

    def column(self, name: str) -> pa.Array:
        return self.records.column(name)


class KeyedBatchFunction(ABC):
    """A function over batches of records of a keyed stream, with columnar state.

    One copy runs in each subtask, and is opened anew for each micro-batch, as a `KeyedProcessFunction` is. How a micro-batch
    is cut into calls is not fixed, so a result must not depend on it.
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - overriding it is the user's choice
        """Called before the first records of a micro-batch; get the states here."""

    @abstractmethod
    def process_batch(self, batch: KeyedBatch) -> BatchResult:
        """Called with some records of a subtask; a key may occur in several rows.

        Returns:
            Output records as a RecordBatch or Table, an iterable of them, or None. Columns are found by name and may be
            more than were declared; types are cast where no value is lost.
        """

    def close(self) -> None:  # noqa: B027 - as above
        """Called after the last records of a micro-batch; not when it has failed."""


@dataclass(frozen=True, slots=True)
class ProcessBatch(OperatorLogic):
    """The logic of an operator that runs a user's function over batches."""

    function: KeyedBatchFunction

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> ProcessBatchBody:
        return self.start_with(state, facts, OperatorStateBackend())

    def start_with(
        self, state: KeyedStateBackend, facts: SubtaskFacts, operator: OperatorStateBackend
    ) -> ProcessBatchBody:
        return ProcessBatchBody(self.function, state, facts, operator)


class ProcessBatchBody(OperatorBody):
    """A user's batch function at work in one task."""

    def __init__(
        self,
        function: KeyedBatchFunction,
        state: KeyedStateBackend,
        facts: SubtaskFacts,
        operator: OperatorStateBackend,
    ) -> None:
        self._function = function
        self._facts = facts
        with user_code():
            function.open(RuntimeContext(state, facts, operator))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        facts = self._facts
        keyed = KeyedBatch(
            records=batch.select(list(facts.input_columns)),
            key_groups=batch.column(KEY_GROUP_COLUMN),
            keys=[batch.column(name) for name in facts.key_columns],
        )
        with user_code():
            result = self._function.process_batch(keyed)
            if result is None:
                return
            parts = [result] if isinstance(result, (pa.RecordBatch, pa.Table)) else result
            for part in parts:
                yield from conformed(part, facts.output_schema)

    def close(self) -> None:
        with user_code():
            self._function.close()


def conformed(part: pa.RecordBatch | pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Output records with exactly the columns and types of a schema.

    Raises:
        OutputTypeError: It is no batch, a column is missing, or values do not fit the declared type.
    """
    if not isinstance(part, (pa.RecordBatch, pa.Table)):
        message = f"a result is a {type(part).__name__}; return RecordBatches or Tables"
        raise OutputTypeError(message)
    missing = [name for name in schema.names if name not in part.schema.names]
    if missing:
        message = f"a result lacks the columns [{', '.join(missing)}]"
        raise OutputTypeError(message)
    table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
    columns = [_cast(table.column(field.name), field) for field in schema]
    return [batch for batch in pa.Table.from_arrays(columns, schema=schema).to_batches() if batch.num_rows]


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException:
        pass
    # Outside the handler: Arrow's own message quotes the value.
    message = f"output column {field.name!r} is declared {field.type} and was given values of: {column.type}"
    raise OutputTypeError(message)
