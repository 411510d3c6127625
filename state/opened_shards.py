from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from state.directory import LocalShard
from state.errors import StateError
from state.filtered_engine import FilteredEngine
from state.rebuild import FetchReport, clip, fetch_shards, local_snapshot_directories, remember_files, replay
from state.restore import assign_to_range
from state.schema_merge import merge_schemas
from state.shards import ShardedEngine
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from state.directory import SubtaskDirectory
    from state.key_groups import KeyGroupRange
    from state.objects import ObjectStore
    from state.restore import RestorePlan
    from state.schema import KeyedSchema
    from state.subtask_spec import SubtaskSpec
    from state.ttl import Ttl
    from state.version import StateVersion

logger = logging.getLogger(__name__)


class StateSource(StrEnum):
    """Where a task found its subtask's state."""

    WARM = "warm"  # still open in the process that ran the batch before
    LOCAL = "local"  # in files of this host that had been closed cleanly
    REBUILT = "rebuilt"  # in the object store: a snapshot, and the changelogs since
    NEW = "new"  # nowhere: there was none yet


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
        schema: How their entries are to be read; None if there are none.
        source: Where it was found.
        fetched: Where the files came from; None if the local ones were used as they were.
        ttls: The TTL of each state that has one, as far as it is known without the job's code.
    """

    shards: tuple[OpenedShard, ...]
    schema: KeyedSchema | None
    source: StateSource
    fetched: FetchReport | None = None
    ttls: Mapping[str, Ttl] = field(default_factory=dict)

    def engine(self) -> ShardedEngine:
        """All shards as one engine."""
        return ShardedEngine([(shard.key_groups, shard.engine) for shard in self.shards])

    def close(self) -> None:
        """Close every shard."""
        for shard in self.shards:
            shard.engine.close()


def reopen_shards(spec: SubtaskSpec, version: StateVersion, directory: SubtaskDirectory) -> OpenedShards | None:
    """The local files as they are, if they are exactly what is wanted; they count as dirty from now on."""
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


def rebuild_shards(
    spec: SubtaskSpec, plan: RestorePlan, directory: SubtaskDirectory, local_root: Path, store: ObjectStore
) -> OpenedShards:
    """Local files made anew from a plan. Raises as `state.subtask.open_subtask` does."""
    schema = merge_schemas([spec.schema, *plan.schemas()])
    directory.clear()
    data = directory.fresh_data()
    assignments = assign_to_range(plan.snapshots, spec.key_group_range)
    ranges = [assignment.key_groups for assignment in assignments] or [spec.key_group_range]
    local = [LocalShard(f"{data.name}/{number}", own.start, own.end) for number, own in enumerate(ranges)]
    directories = [directory.path / shard.directory for shard in local][: len(assignments)]
    snapshots = local_snapshot_directories(local_root, spec.job_id, spec.operator_uid)
    report = fetch_shards(store, assignments, directories, snapshots)
    remember_files(directory.path, assignments, directories)
    reach("restore.files_fetched")
    source = StateSource.NEW if plan.is_empty else StateSource.REBUILT
    opened = OpenedShards(open_shards(spec, directory, local), schema, source, report)
    try:
        for shard, assignment in zip(
            opened.shards, assignments, strict=False
        ):  # a fresh state has a shard and no assignment
            clip(shard.engine, assignment)
        replay(store, plan.changelogs, spec.key_group_range, opened.engine(), data.with_name(f"{data.name}.replay"))
    except BaseException:
        opened.close()
        raise
    reach("restore.replayed")
    return opened


def open_shards(spec: SubtaskSpec, directory: SubtaskDirectory, local: Sequence[LocalShard]) -> tuple[OpenedShard, ...]:
    """All of these shards, or none."""
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
