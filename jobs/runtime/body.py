"""The seam between the runtime and what an operator does with its records.

An `OperatorLogic` is declared on the driver and pickled into the tasks; there it starts an `OperatorBody` over the state of
one subtask. Each kind of operator (process, deduplicate, ...) is one implementation of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from state.identifiers import Attempt, OperatorUid, SubtaskIndex
    from state.keyed import KeyedStateBackend

KEY_GROUP_COLUMN = "__key_group"


@dataclass(frozen=True, slots=True)
class SubtaskFacts:
    """Which subtask of which operator is at work, and on what."""

    operator_uid: OperatorUid
    subtask: SubtaskIndex
    parallelism: int
    max_parallelism: int
    attempt: Attempt
    input_columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    timestamp_column: str | None
    output_schema: pa.Schema


class OperatorBody(Protocol):
    """An operator at work in one task."""

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Takes input columns and `__key_group`; gives batches of the output schema."""
        ...

    def close(self) -> None:
        """Called once, after the last batch; not when the task has failed."""
        ...


class OperatorLogic(Protocol):
    """What an operator is to do, as it was declared. Picklable."""

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> OperatorBody: ...
