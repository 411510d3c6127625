"""Dropping records whose key was seen before, a whole batch at a time: exactly, or by a 64-bit hash of the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from jobs.key_hash import KEY_HASH_VERSION, key_hashes
from jobs.runtime.body import KEY_GROUP_COLUMN, OperatorBody, OperatorLogic
from state.columns import column_over
from state.descriptors import ValueStateDescriptor
from state.errors import StateSchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs.runtime.body import SubtaskFacts
    from state.keyed import KeyedStateBackend
    from state.ttl import Ttl

FORM_PREFIX: Final = "__"  # no column of a stream begins with it
_HASHED_FORM: Final = f"{FORM_PREFIX}xxh64.v{KEY_HASH_VERSION}"


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorLogic):
    """The logic of an operator that lets the first record of each key through.

    Attributes:
        ttl: How long a key is remembered; for ever if None.
        hashed: Whether the key's hash is stored in its place.
    """

    ttl: Ttl | None
    hashed: bool = False

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        return pa.schema([(stored_form(_HASHED_FORM, key), pa.int64())]) if self.hashed else key

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> DeduplicateBody:
        check_form(state, _HASHED_FORM if self.hashed else None)
        return DeduplicateBody(self, state, facts)


class DeduplicateBody(OperatorBody):
    """Deduplication at work in one task."""

    def __init__(self, logic: Deduplicate, state: KeyedStateBackend, facts: SubtaskFacts) -> None:
        self._hashed = logic.hashed
        self._seen = state.value_state(ValueStateDescriptor("seen", pa.bool_(), ttl=logic.ttl))
        self._facts = facts

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Keeps the rows' order: of several with one key in the batch, the first one stays."""
        keys = [batch.column(name) for name in self._facts.key_columns]
        if self._hashed:
            keys = [column_over(key_hashes(keys).view(np.int64))]
        first = self._seen.insert_if_absent_many(batch.column(KEY_GROUP_COLUMN), keys, True)
        yield batch.select(self._facts.output_schema.names).filter(column_over(first))


def stored_form(form: str, key: pa.Schema) -> str:
    """The name of the one column that stands for a key in state, which also says whose place it takes."""
    return f"{form}({', '.join(f'{field.name} {field.type}' for field in key)})"


def check_form(state: KeyedStateBackend, form: str | None) -> None:
    """Refuse state of another form of deduplication: what it remembers could not be found.

    Args:
        state: The subtask's.
        form: What the stored key's name begins with; None: it is the key itself.

    Raises:
        StateSchemaMismatchError: The state was written otherwise.
    """
    stored = state.schema.key[0][0]
    known = stored.partition("(")[0] if stored.startswith(FORM_PREFIX) else None
    if known != form:
        message = f"the operator remembers keys in the form {known or 'exact'!r} and was declared in the form {form or 'exact'!r}"
        raise StateSchemaMismatchError(message)
