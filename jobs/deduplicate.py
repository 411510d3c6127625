"""Dropping records whose key was seen before, a whole batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.runtime.body import KEY_GROUP_COLUMN, OperatorBody, OperatorLogic
from state.descriptors import ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs.runtime.body import SubtaskFacts
    from state.keyed import KeyedStateBackend
    from state.ttl import Ttl


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorLogic):
    """The logic of an operator that lets the first record of each key through.

    Attributes:
        ttl: How long a key is remembered; for ever if None.
    """

    ttl: Ttl | None

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> DeduplicateBody:
        return DeduplicateBody(self.ttl, state, facts)


class DeduplicateBody(OperatorBody):
    """Deduplication at work in one task."""

    def __init__(self, ttl: Ttl | None, state: KeyedStateBackend, facts: SubtaskFacts) -> None:
        self._seen = state.value_state(ValueStateDescriptor("seen", pa.bool_(), ttl=ttl))
        self._facts = facts

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Keeps the rows' order: of several with one key in the batch, the first one stays."""
        keys = [batch.column(name) for name in self._facts.key_columns]
        first = self._seen.insert_if_absent_many(batch.column(KEY_GROUP_COLUMN), keys, True)
        yield batch.select(self._facts.output_schema.names).filter(pa.array(first))
