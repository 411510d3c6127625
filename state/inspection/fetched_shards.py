"""Opens the stored state of key groups in a scratch directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.rocksdb import RocksDbEngine
from ..engine.sharded import ShardedEngine
from ..restore.plan import assign_to_range
from ..restore.rebuild import clip, fetch_shards, replay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..documents.changelog import ChangelogHandle
    from ..documents.manifest import SnapshotHandle
    from ..engine.engine import Engine
    from ..keys.key_groups import KeyGroupRange
    from ..objects.object_store import ObjectStore


def open_fetched(
    store: ObjectStore,
    snapshots: Sequence[SnapshotHandle],
    key_groups: KeyGroupRange,
    directory: Path,
    *,
    changelogs: Sequence[ChangelogHandle] = (),
) -> list[tuple[KeyGroupRange, Engine]]:
    """Fetches and opens the shards of key groups, with later changelogs applied.

    Args:
        store: The object store.
        snapshots: The snapshots of the key groups; without any, the state begins empty.
        key_groups: The key groups to open.
        directory: A scratch directory, which is created.
        changelogs: Later changelogs, in the order of their batches.

    Returns:
        The engines with their key groups, for the caller to close.

    Raises:
        ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
        DiskFullError, DiskReadOnlyError: The directory cannot be written.
    """
    assignments = assign_to_range(snapshots, key_groups)
    folders = [directory / str(number) for number in range(len(assignments))]
    fetch_shards(store, assignments, folders, ())
    engines: list[tuple[KeyGroupRange, Engine]] = []
    try:
        for assignment, folder in zip(assignments, folders, strict=True):
            engines.append((assignment.key_groups, RocksDbEngine(folder)))
            clip(engines[-1][1], assignment)
        if not engines:
            engines.append((key_groups, RocksDbEngine(directory / "0")))
        replay(store, changelogs, key_groups, ShardedEngine(engines), directory / "replay")
    except BaseException:
        close_all(engines)
        raise
    return engines


def close_all(engines: Sequence[tuple[KeyGroupRange, Engine]]) -> None:
    """Closes every engine."""
    for _, engine in engines:
        engine.close()
