"""A subtask's shards, open on this host at one version."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from keyscale.syncpoint import reach

from ..engine.filtered import FilteredEngine
from ..engine.sharded import ShardedEngine
from ..errors import StateError
from ..keyed.schema import merge_schemas
from ..local.subtask_directory import LocalShard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..documents.state_version import StateVersion
    from ..keyed.schema import KeyedSchema
    from ..keyed.ttl import Ttl
    from ..keys.key_groups import KeyGroupRange
    from ..local.subtask_directory import LocalShard, SubtaskDirectory
    from ..local.subtask_spec import SubtaskSpec

logger = logging.getLogger(__name__)


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


def reopen_shards(spec: SubtaskSpec, version: StateVersion, directory: SubtaskDirectory) -> OpenedShards | None:
    """Opens the local files if they are exactly at the wanted version.

    The files count as dirty from now on.

    Returns:
        The shards, or None if the local files cannot be used.
    """
    marker = directory.take_clean_marker()
    reach("open.marker_taken")
    if marker is None or marker.lineage != version.lineage:
        return None
    try:
        directory.keep_only(marker.shards)
        schema = merge_schemas([spec.schema, marker.schema])
        return OpenedShards(open_shards(spec, directory, marker.shards), schema, StateSource.LOCAL, ttls=marker.ttls)
    except StateError:
        logger.warning(
            "local state of subtask %d of %s cannot be opened; rebuilding it",
            spec.index,
            spec.operator_uid,
            exc_info=True,
        )
        return None


def open_shards(spec: SubtaskSpec, directory: SubtaskDirectory, local: Sequence[LocalShard]) -> tuple[OpenedShard, ...]:
    """Opens all of these shards, or none."""
    shards: list[OpenedShard] = []
    try:
        for shard in local:
            engine = FilteredEngine(directory.path / shard.directory, spec.settings)
            shards.append(OpenedShard(shard, engine))
    except BaseException:
        for opened in shards:
            opened.engine.close()
        raise
    return tuple(shards)
