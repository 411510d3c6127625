"""A state version: the last batch, and the lineage of the content.

A lineage starts as the hash of the restored state's origin, and the path of every applied changelog is hashed into it.
Changelog paths are unique to the task that wrote them, so two states of one lineage have the same content. The lineage
of a state that a failed try left behind is never requested.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.identifiers import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..keys.key_groups import KeyGroupRange

NO_BATCH = BatchId(-1)


@dataclass(frozen=True, slots=True)
class StateVersion:
    """A subtask's state after a batch (-1: before any), with its lineage."""

    batch_id: BatchId
    lineage: str

    def advanced(self, batch_id: BatchId, changelog_path: str | None) -> StateVersion:
        """Returns the version after a batch; None for an unchanged content."""
        return StateVersion(batch_id, self.lineage if changelog_path is None else _digest(self.lineage, changelog_path))


def base_lineage(key_groups: KeyGroupRange, parts: Iterable[tuple[KeyGroupRange, str]]) -> str:
    """Returns the lineage of a state composed of parts and clipped.

    Parts are pairs of key group range and lineage. A single part with exactly the range keeps its lineage.
    """
    known = sorted(parts)
    if len(known) == 1 and known[0][0] == key_groups:
        return known[0][1]
    texts = [f"{part.start}-{part.end}:{lineage}" for part, lineage in known]
    return _digest(f"{key_groups.start}-{key_groups.end}", *texts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
