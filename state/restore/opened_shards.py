"""A subtask's shards, open on this host at one version."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ..engine.filtered import FilteredEngine
from ..engine.sharded import ShardedEngine
from ..local.subtask_directory import LocalShard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..keyed.schema import KeyedSchema
    from ..keyed.ttl import Ttl
    from ..keys.key_groups import KeyGroupRange
    from ..local.subtask_directory import LocalShard, SubtaskDirectory
    from ..local.subtask_spec import SubtaskSpec


class StateSource(StrEnum):
    """Where a task found its subtask's state."""

    WARM = "warm"  # still open in the process that ran the previous batch
    LOCAL = "local"  # in local files that were closed cleanly
    REBUILT = "rebuilt"  # in the object store: a snapshot, and the later changelogs
    NEW = "new"  # nowhere: the state is empty


@dataclass(frozen=True, slots=True)
class FetchReport:
    """The number of linked and of downloaded files of a rebuilt store."""

    linked_files: int = 0
    downloaded_files: int = 0


@dataclass(frozen=True, slots=True)
class OpenedShard:
    """A shard's directory and its open RocksDB."""

    local: LocalShard
    engine: FilteredEngine

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.local.key_groups


@dataclass(frozen=True, slots=True)
class OpenedShards:
    """A subtask's local state, open at a version.

    Attributes:
        shards: Ordered by key group; they exactly cover the subtask's range.
        schema: The schema of their entries; None if there are none.
        source: Where the state was found.
        fetched: Where the files came from; None if local files were used as they were.
        ttls: The TTL of each state with a TTL, as far as known without the job's code.
    """

    shards: tuple[OpenedShard, ...]
    schema: KeyedSchema | None
    source: StateSource
    fetched: FetchReport | None = None
    ttls: Mapping[str, Ttl] = field(default_factory=dict)

    def engine(self) -> ShardedEngine:
        """Returns all shards as one engine."""
        return ShardedEngine([(shard.key_groups, shard.engine) for shard in self.shards])

    def close(self) -> None:
        """Closes every shard."""
        for shard in self.shards:
            shard.engine.close()


def open_shards(
    spec: SubtaskSpec, directory: SubtaskDirectory, local: Sequence[LocalShard], *, compacts: bool = True
) -> tuple[OpenedShard, ...]:
    """Opens all of these shards, or none; see `RocksDbEngine` for `compacts`."""
    shards: list[OpenedShard] = []
    try:
        for shard in local:
            engine = FilteredEngine(directory.path / shard.directory, spec.settings, compacts=compacts)
            shards.append(OpenedShard(shard, engine))
    except BaseException:
        for opened in shards:
            opened.engine.close()
        raise
    return tuple(shards)
