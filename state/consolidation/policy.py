"""Decides whether a consolidation is worthwhile; pure.

A consolidation rewrites a subtask's shards as a single shard. Trimming one shard (to free what a clip hides) and
merging several are the same work. It begins with a snapshot, between two batches.
`keyscale.state.consolidation.consolidator` then works in its own process, on hard links that nothing else writes to,
while `keyscale.state.consolidation.catch_up_log` keeps the changelogs of later batches. When the subtask is next
opened, `keyscale.state.consolidation.take_over` takes the result over. Until then the subtask's store only writes the
catch-up log, so a kill at any step costs the work and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ..engine.rocksdb_settings import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..engine.key_group_sizes import FileFacts
    from ..keys.key_groups import KeyGroupRange


class Consolidation(StrEnum):
    """The action on a subtask's shards."""

    NOTHING = "nothing"
    TRIM = "trim"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class ConsolidationPolicy:
    """When rewriting and uploading a subtask's whole state is worthwhile.

    Attributes:
        foreign_share_min: The least share of the files' bytes that a trim must free: other subtasks' key groups, or
            expired entries.
        foreign_bytes_min: The least number of bytes that a trim must free.
        retry_seconds: The delay of the next try after a consolidation was given up.
    """

    foreign_share_min: float = 0.25
    foreign_bytes_min: int = 16 * MEBIBYTE
    retry_seconds: float = 600.0


DEFAULT_POLICY = ConsolidationPolicy()


@dataclass(frozen=True, slots=True)
class ConsolidationFacts:
    """The input of the decision.

    Attributes:
        shards: How many shards the subtask has.
        file_bytes: Bytes of their files.
        foreign_bytes: Bytes that belong to key groups of other subtasks, estimated from the files' bounds.
        free_bytes: Free bytes on the disk.
        given_up_seconds: How long ago the last consolidation was given up; None: never.
        expired_bytes: Bytes of the subtask's own expired entries whose TTL is cleaned up by compaction, estimated from
            a sample.
    """

    shards: int
    file_bytes: int
    foreign_bytes: int
    free_bytes: int
    given_up_seconds: float | None = None
    expired_bytes: int = 0


def decide(facts: ConsolidationFacts, policy: ConsolidationPolicy = DEFAULT_POLICY) -> Consolidation:
    """Decides whether to trim or merge; pure."""
    own_bytes = facts.file_bytes - facts.foreign_bytes
    if facts.given_up_seconds is not None and facts.given_up_seconds < policy.retry_seconds:
        return Consolidation.NOTHING
    if facts.free_bytes < 2 * own_bytes:  # for temporary sorted files, and the compaction's output
        return Consolidation.NOTHING
    if facts.shards > 1:
        return Consolidation.MERGE
    foreign_bytes_min = max(policy.foreign_bytes_min, policy.foreign_share_min * facts.file_bytes)
    dead_bytes = facts.foreign_bytes + facts.expired_bytes
    return Consolidation.TRIM if dead_bytes >= foreign_bytes_min else Consolidation.NOTHING


def foreign_bytes(files: Iterable[FileFacts], own: KeyGroupRange) -> int:
    """Estimates how many bytes of a shard's files are foreign.

    A file's bytes are assumed to be spread evenly over the key groups that it spans.
    """
    foreign = 0.0
    for file in files:
        first, last = _key_group(file.first), _key_group(file.last)
        inside = max(0, min(last, own.end) - max(first, own.start) + 1)
        foreign += file.size_bytes * (1 - inside / (last - first + 1))
    return round(foreign)


def _key_group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")
