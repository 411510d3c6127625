"""A state version: the number of the last batch, and a lineage that identifies the content.

A lineage starts as the hash of what the state was restored from, and the path of every applied changelog is hashed
into it. Changelogs' paths are unique to the task that wrote them, so two states of one lineage have the same content,
and nothing ever asks for the lineage of a state that a failed try of a batch left behind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..identifiers import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..keys.key_groups import KeyGroupRange

NO_BATCH = BatchId(-1)


@dataclass(frozen=True, slots=True)
class StateVersion:
    """A subtask's state after a batch (-1: before any), and the identity of its content."""

    batch_id: BatchId
    lineage: str

    def advanced(self, batch_id: BatchId, changelog_path: str | None) -> StateVersion:
        """Returns the version after a batch that wrote this changelog; None: the content did not change."""
        return StateVersion(batch_id, self.lineage if changelog_path is None else _digest(self.lineage, changelog_path))


def base_lineage(key_groups: KeyGroupRange, parts: Iterable[tuple[KeyGroupRange, str]]) -> str:
    """Returns the lineage of a state composed of parts (key group range and lineage), clipped to a key group range.

    A single part with exactly that range keeps its lineage.
    """
    known = sorted(parts)
    if len(known) == 1 and known[0][0] == key_groups:
        return known[0][1]
    texts = [f"{part.start}-{part.end}:{lineage}" for part, lineage in known]
    return _digest(f"{key_groups.start}-{key_groups.end}", *texts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
