"""A sample of the records of a subtask in a batch.

It has limits, and whatever fails while it is taken leaves it as it is: a sample never fails a task.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ...operators.operator_contract import SideBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ...operators.operator_contract import OutputBatch

INPUT, OUTPUT = "input", "output"
_ROW_CHARACTERS_MAX = 2000
_OWN_COLUMN = "__"  # columns of the platform begin with it
_HASH_BYTES = 4


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """What each subtask of an operator samples.

    Attributes:
        id: The diagnostic.
        rows: The number of records, of those read and of those emitted.
        key: Values are replaced by their types and hashes under this key; None to show values. With a new key per
            sample, hashes say which values of the sample are equal, and nothing else.
    """

    id: str
    rows: int
    key: bytes | None


class RecordSample:
    """The first records of a subtask, as lines of JSON.

    Args:
        order: What to sample; None: nothing.
    """

    def __init__(self, order: SampleOrder | None) -> None:
        self._order = order
        self.lines: dict[str, list[str]] = {}

    def of_input(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes the records on that the subtask reads."""
        for batch in batches:
            self._note(INPUT, batch)
            yield batch

    def of_output(self, outputs: Iterator[OutputBatch]) -> Iterator[OutputBatch]:
        """Passes the records on that the subtask emits."""
        for output in outputs:
            if isinstance(output, SideBatch):
                self._note(f"{OUTPUT} {output.tag}", output.records)
            else:
                self._note(OUTPUT, output)
            yield output

    def _note(self, side: str, batch: pa.RecordBatch) -> None:
        if self._order is None:
            return
        with suppress(Exception):  # a value may have no form in JSON
            lines = self.lines.setdefault(side, [])
            shown = [name for name in batch.schema.names if not name.startswith(_OWN_COLUMN)]
            for row in batch.slice(0, self._order.rows - len(lines)).select(shown).to_pylist():
                key = self._order.key
                line = json.dumps(row if key is None else hidden(row, key), default=str, ensure_ascii=False)
                lines.append(line if len(line) <= _ROW_CHARACTERS_MAX else f"{line[:_ROW_CHARACTERS_MAX]}…")


def hidden(value: Any, key: bytes) -> Any:
    """Replaces values by their types and hashes; the form stays."""
    if isinstance(value, dict):
        return {name: hidden(each, key) for name, each in value.items()}
    if isinstance(value, list):
        return [hidden(each, key) for each in value]
    if value is None:
        return None
    digest = blake2b(repr(value).encode(), key=key, digest_size=_HASH_BYTES).hexdigest()
    return f"{type(value).__name__} {digest}"
