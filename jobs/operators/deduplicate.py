"""Deduplication of whole batches, exact or by a 64-bit key hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from keyscale.state.doors.keyed import StateSchemaMismatchError, ValueStateDescriptor
from keyscale.state.doors.values import KEY_HASH_VERSION, column_over, key_hashes

from .operator_contract import KEY_GROUP_COLUMN, Operator, OperatorLogic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state.doors.keyed import KeyedStateBackend, Ttl

    from ..functions.subtask_info import SubtaskInfo

FORM_PREFIX: Final = "__"  # stream columns never begin with it
_HASHED_FORM: Final = f"{FORM_PREFIX}xxh64.v{KEY_HASH_VERSION}"


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorLogic):
    """The logic of an operator that emits each key's first record.

    Attributes:
        ttl: How long a key is remembered; None for forever.
        hashed: Whether the hash of a key is stored instead of the key.
    """

    ttl: Ttl | None
    hashed: bool = False

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        return pa.schema([(stored_form(_HASHED_FORM, key), pa.int64())]) if self.hashed else key

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> DeduplicateOperator:
        check_form(state, _HASHED_FORM if self.hashed else None)
        return DeduplicateOperator(self, state, info)


class DeduplicateOperator(Operator):
    """Deduplication running in one task."""

    def __init__(self, logic: Deduplicate, state: KeyedStateBackend, info: SubtaskInfo) -> None:
        self._hashed = logic.hashed
        self._seen = state.state(ValueStateDescriptor("seen", pa.bool_(), ttl=logic.ttl))
        self._info = info

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the first row of each new key, in order."""
        keys = [batch.column(name) for name in self._info.key_columns]
        if self._hashed:
            keys = [column_over(key_hashes(keys).view(np.int64))]
        first = self._seen.insert_if_absent_many(batch.column(KEY_GROUP_COLUMN), keys, True)
        yield batch.select(self._info.output_schema.names).filter(column_over(first))


def stored_form(form: str, key: pa.Schema) -> str:
    """Returns the name of the column that replaces a key in state.

    The name contains the key's columns and types.
    """
    return f"{form}({', '.join(f'{field.name} {field.type}' for field in key)})"


def check_form(state: KeyedStateBackend, form: str | None) -> None:
    """Refuses state of another form of deduplication.

    In such state no key would be found.

    Args:
        state: The subtask's state.
        form: The prefix of the stored key's name; None if the key itself is stored.

    Raises:
        StateSchemaMismatchError: The state was written in another form.
    """
    stored = state.schema.key[0][0]
    known = stored.partition("(")[0] if stored.startswith(FORM_PREFIX) else None
    if known != form:
        raise StateSchemaMismatchError(
            f"the operator remembers keys in the form {known or 'exact'!r}"
            f" and was declared in the form {form or 'exact'!r}"
        )
