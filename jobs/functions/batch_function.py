"""Functions over whole Arrow batches of a keyed stream.

This is the fast path: it creates no Python object per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from .process_function import RuntimeContext

BatchResult: TypeAlias = "pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None"
"""The results that a batch function may return. A generator is an iterable."""


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """Some records of one subtask, as columns.

    Pass `key_groups` and `keys` to the columnar methods of states: `state.get_many(batch.key_groups, batch.keys)`. Pass
    the objects themselves, not copies: the keys are then encoded once for all states.

    Attributes:
        records: The stream's columns, in the order of arrival.
        key_groups: Each row's key group.
        keys: Each row's key, as one array per key column.
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
    """A function over batches of a keyed stream, with columnar state.

    One instance runs in each subtask; a new instance is opened for each batch, as with `KeyedProcessFunction`. A batch
    may be split into any number of calls, so results must not depend on the split.
    """

    def open(self, context: RuntimeContext) -> None:  # noqa: B027 - users may override it
        """Opens the function before the first records of a batch.

        Get the states here.
        """

    @abstractmethod
    def process_batch(self, batch: KeyedBatch) -> BatchResult:
        """Processes some records of a subtask.

        A key may occur in several rows.

        Returns:
            Output records as a RecordBatch or Table, an iterable of them, or None. Columns are matched by name; extra
            columns are ignored; types are cast if no value is lost.
        """

    def close(self) -> None:  # noqa: B027 - users may override it
        """Closes the function after the last records of a batch.

        Not called if the batch has failed.
        """
