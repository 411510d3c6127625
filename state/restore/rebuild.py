"""Carries out a restore plan: fetches and clips shards, applies changelogs."""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.failpoints import failpoint

from ..documents.changelog import clip_runs, read_changelog
from ..errors import StoreCorruptError
from ..keyed.schema import merge_schemas
from ..local.damage import doubt_local_files
from ..local.file_index import FileIdentity, IndexedFile, link_or_copy, local_copies, write_index
from ..local.subtask_directory import LocalShard, local_failures, local_snapshot_directories
from .opened_shards import FetchReport, OpenedShards, StateSource, open_shards
from .plan import assign_to_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..documents.changelog import ChangelogHandle
    from ..documents.manifest import FileHandle
    from ..engine.engine import Engine, SortedRun
    from ..keys.key_groups import KeyGroupRange
    from ..local.subtask_directory import SubtaskDirectory
    from ..local.subtask_spec import SubtaskSpec
    from ..objects.object_store import ObjectStore
    from .plan import RestorePlan, ShardAssignment

logger = logging.getLogger(__name__)

DOWNLOADS_AT_A_TIME = 8
READ_AHEAD_BYTES_MAX = 8 << 20


def rebuild_shards(
    spec: SubtaskSpec, plan: RestorePlan, directory: SubtaskDirectory, local_root: Path, store: ObjectStore
) -> OpenedShards:
    """Builds a subtask's local state from a plan, replacing local files.

    If the files prove damaged, the state is built once more, from files with verified content only. Raises the errors
    of `keyscale.state.subtask.store.open_subtask`.
    """
    try:
        return _rebuild_shards(spec, plan, directory, local_root, store)
    except StoreCorruptError:
        if not doubt_local_files(spec.local_directory(local_root)):
            raise  # every linked file was verified
        return _rebuild_shards(spec, plan, directory, local_root, store)


def _rebuild_shards(
    spec: SubtaskSpec, plan: RestorePlan, directory: SubtaskDirectory, local_root: Path, store: ObjectStore
) -> OpenedShards:
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
    failpoint("restore.files_fetched")
    source = StateSource.NEW if plan.is_empty else StateSource.REBUILT
    # Without compactions until the first batch: another worker may open the store first, and RocksDB closes a store
    # only once the filter of a merged file is built, which takes seconds for a large file.
    opened = OpenedShards(open_shards(spec, directory, local, compacts=False), schema, source, report)
    try:
        for shard, assignment in zip(opened.shards, assignments, strict=False):  # new state has a shard, unassigned
            clip(shard.engine, assignment)
        replay(store, plan.changelogs, spec.key_group_range, opened.engine(), data.with_name(f"{data.name}.replay"))
    except BaseException:
        opened.close()
        raise
    failpoint("restore.replayed")
    return opened


def fetch_shards(
    store: ObjectStore,
    assignments: Sequence[ShardAssignment],
    directories: Sequence[Path],
    local_snapshots: Sequence[Path],
) -> FetchReport:
    """Links or downloads the files of each assigned shard into a directory.

    Files on this host are linked; the rest is downloaded and verified by length and SHA-256. A file is linked only if
    it has certainly not changed since it was hashed; in doubt it is hashed again.

    Args:
        store: The object store.
        assignments: The shards.
        directories: A directory for each of them, which is created.
        local_snapshots: Directories with an index of files on this host.

    Raises:
        ObjectNotFoundError: A file is missing in the store.
        ObjectCorruptError: A file is damaged in the store.
        DiskFullError, DiskReadOnlyError: The directories cannot be written.
    """
    wanted: list[tuple[FileHandle, Path]] = []
    for assignment, directory in zip(assignments, directories, strict=True):
        with local_failures(directory):
            directory.mkdir(parents=True)
        wanted.extend((file, directory / Path(file.name).name) for file in assignment.shard.files)
    local = local_copies(local_snapshots, {file.sha256 for file, _ in wanted if file.shared})

    def fetch(item: tuple[FileHandle, Path]) -> bool:
        file, target = item
        copy = local.get(file.sha256)
        if copy is not None and not copy.is_sound():
            logger.warning("%s is damaged; fetching it from the object store", copy.path)
        elif copy is not None and _linked(copy.path, target):
            return True
        store.download(file.path, target, size_bytes=file.size_bytes, sha256=file.sha256)
        failpoint("restore.file_downloaded")
        return False

    with ThreadPoolExecutor(DOWNLOADS_AT_A_TIME, thread_name_prefix="download") as fetchers:
        links = list(fetchers.map(fetch, wanted))
    return FetchReport(linked_files=sum(links), downloaded_files=len(links) - sum(links))


def remember_files(root: Path, assignments: Sequence[ShardAssignment], directories: Sequence[Path]) -> None:
    """Writes an index of the fetched files.

    The next snapshot then need not hash them again.
    """
    with local_failures(root):
        write_index(
            root,
            [
                IndexedFile(str(path.relative_to(root)), FileIdentity.of(path), file.sha256)
                for assignment, directory in zip(assignments, directories, strict=True)
                for file in assignment.shard.files
                if file.shared
                for path in [directory / Path(file.name).name]
            ],
        )


def clip(engine: Engine, assignment: ShardAssignment) -> None:
    """Removes unassigned key groups from a shard by two range deletes."""
    own, whole = assignment.key_groups, assignment.shard.key_groups
    if own.start > whole.start:
        engine.delete_range(whole.start_key, own.start_key)
    if own.end < whole.end:
        engine.delete_range(own.end_key, whole.end_key)


def replay(
    store: ObjectStore, changelogs: Sequence[ChangelogHandle], key_groups: KeyGroupRange, engine: Engine, scratch: Path
) -> None:
    """Applies changelogs in order, clipped, with read-ahead.

    Args:
        store: The store that holds them.
        changelogs: In the order of their batches.
        key_groups: The engine's key groups.
        engine: The subtask's engine, with the state before the changelogs.
        scratch: A directory for temporary files; created and removed.
    """
    with local_failures(scratch):
        scratch.mkdir(parents=True)

    def fetch(handle: ChangelogHandle) -> tuple[list[SortedRun], list[Path]]:
        files = [scratch / uuid.uuid4().hex for _ in handle.sorted_files]
        for sorted_file, target in zip(handle.sorted_files, files, strict=True):
            store.download(sorted_file.path, target, size_bytes=sorted_file.size_bytes, sha256=sorted_file.sha256)
        return read_changelog(store, handle), files

    with ThreadPoolExecutor(DOWNLOADS_AT_A_TIME, thread_name_prefix="changelog") as readers:
        for some in read_together(changelogs):
            for handle, (runs, files) in zip(some, readers.map(fetch, some), strict=True):
                engine.write_runs(clip_runs(runs, key_groups))
                _ingest(engine, handle, files, key_groups)
                failpoint("restore.changelog_read")
    with local_failures(scratch):
        scratch.rmdir()


def read_together(changelogs: Sequence[ChangelogHandle]) -> Iterator[Sequence[ChangelogHandle]]:
    """Yields changelogs, in order, in groups that are read ahead together.

    The framed runs of a group are in memory at once.
    """
    start, size_bytes = 0, 0
    for end, handle in enumerate(changelogs):
        if end - start == DOWNLOADS_AT_A_TIME or (
            end > start and size_bytes + handle.size_bytes > READ_AHEAD_BYTES_MAX
        ):
            yield changelogs[start:end]
            start, size_bytes = end, 0
        size_bytes += handle.size_bytes
    if changelogs:
        yield changelogs[start:]


def _ingest(engine: Engine, handle: ChangelogHandle, files: Sequence[Path], key_groups: KeyGroupRange) -> None:
    for sorted_file, file in zip(handle.sorted_files, files, strict=True):
        engine.ingest(sorted_file.family, [file])
        file.unlink()
        if handle.key_group_start < key_groups.start:
            engine.delete_range(b"", key_groups.start_key, sorted_file.family)
        if handle.key_group_end > key_groups.end:
            engine.delete_range(key_groups.end_key, None, sorted_file.family)


def _linked(source: Path, target: Path) -> bool:
    with local_failures(target):
        try:
            link_or_copy(source, target)
        except FileNotFoundError:  # its attempt has just removed it
            return False
    return True
