"""Consolidation: a subtask's shards made anew as one, without the key groups of others. Whether it is worth it: pure.

Trimming and merging are the same work: of one shard, to be rid of what a clip hides, or of several. It begins with a
snapshot, between two batches; `state.consolidator` then works in a process of its own, on hard links that nobody else
writes to, while `state.tail` keeps the changelogs of the batches since; and `state.swap` takes the result in when the
subtask is next opened. Until then the subtask's store knows nothing of it but the tail, so a kill at any step costs the
work and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from state.settings import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state.key_group_sizes import FileFacts
    from state.key_groups import KeyGroupRange


class Consolidation(StrEnum):
    """What to do about a subtask's shards."""

    NOTHING = "nothing"
    TRIM = "trim"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class ConsolidationPolicy:
    """When consolidation is worth the reading, writing and uploading of a subtask's whole state.

    Attributes:
        foreign_share_min: Share of the files' bytes that a trim must get rid of: of other subtasks' key groups, or expired.
        foreign_bytes_min: Bytes that it must.
        retry_seconds: For how long a consolidation that was given up is not tried again.
    """

    foreign_share_min: float = 0.25
    foreign_bytes_min: int = 16 * MEBIBYTE
    retry_seconds: float = 600.0


DEFAULT_POLICY = ConsolidationPolicy()


@dataclass(frozen=True, slots=True)
class ConsolidationFacts:
    """All that the decision is made from.

    Attributes:
        shards: How many the subtask holds.
        file_bytes: Of their files.
        foreign_bytes: Of these, how many belong to key groups of other subtasks, as near as the files' bounds tell.
        free_bytes: Of the disk.
        given_up_seconds: How long ago the last one was given up; None: none was.
        expired_bytes: How many of the own ones belong to entries that are expired, where their TTL is cleaned up by compaction,
            as near as a sample tells.
    """

    shards: int
    file_bytes: int
    foreign_bytes: int
    free_bytes: int
    given_up_seconds: float | None = None
    expired_bytes: int = 0


def decide(facts: ConsolidationFacts, policy: ConsolidationPolicy = DEFAULT_POLICY) -> Consolidation:
    """Whether to trim or merge. Pure."""
    own_bytes = facts.file_bytes - facts.foreign_bytes
    if facts.given_up_seconds is not None and facts.given_up_seconds < policy.retry_seconds:
        return Consolidation.NOTHING
    if facts.free_bytes < 2 * own_bytes:  # sorted files on their way, and the compaction's output
        return Consolidation.NOTHING
    if facts.shards > 1:
        return Consolidation.MERGE
    foreign_bytes_min = max(policy.foreign_bytes_min, policy.foreign_share_min * facts.file_bytes)
    dead_bytes = facts.foreign_bytes + facts.expired_bytes
    return Consolidation.TRIM if dead_bytes >= foreign_bytes_min else Consolidation.NOTHING


def foreign_bytes(files: Iterable[FileFacts], own: KeyGroupRange) -> int:
    """How much of a shard's files is outside its key groups, a file's bytes being spread evenly over those it spans."""
    foreign = 0.0
    for file in files:
        first, last = _key_group(file.first), _key_group(file.last)
        inside = max(0, min(last, own.end) - max(first, own.start) + 1)
        foreign += file.size_bytes * (1 - inside / (last - first + 1))
    return round(foreign)


def _key_group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")
