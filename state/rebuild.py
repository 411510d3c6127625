"""Rebuilding a subtask's local files from what is durable: shards by link or download, clipped, then the changelogs."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from state.changelog import clip_runs, read_changelog
from state.directory import job_root, local_failures
from state.layout import path_segment
from state.local_files import FileIdentity, IndexedFile, link_or_copy, local_copies, write_index
from state.snapshot import SNAPSHOTS_NAME
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state.changelog import ChangelogHandle
    from state.engine import Engine, SortedRun
    from state.identifiers import JobId, OperatorUid
    from state.key_groups import KeyGroupRange
    from state.manifest import FileHandle
    from state.objects import ObjectStore
    from state.restore import ShardAssignment

DOWNLOADS_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class FetchReport:
    """Where the files of a rebuilt store came from."""

    linked_files: int = 0
    linked_bytes: int = 0
    downloaded_files: int = 0
    downloaded_bytes: int = 0


def fetch_shards(
    store: ObjectStore,
    assignments: Sequence[ShardAssignment],
    directories: Sequence[Path],
    local_snapshots: Sequence[Path],
) -> FetchReport:
    """Bring the files of each assigned shard into its directory: linked where they are on this host, else downloaded.

    Downloads are verified by length and SHA-256. Links are to files of which this host knows that they have not changed
    since they were hashed.

    Args:
        store: Where the files are.
        assignments: The shards.
        directories: For each of them a directory, which is made.
        local_snapshots: Directories with an index of files that are on this host.

    Raises:
        ObjectNotFoundError: A file is missing in the store.
        ObjectCorruptError: A file is damaged there.
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
        if _linked(local.get(file.sha256), target):
            return True
        store.download(file.path, target, size_bytes=file.size_bytes, sha256=file.sha256)
        reach("restore.file_downloaded")
        return False

    with ThreadPoolExecutor(DOWNLOADS_AT_A_TIME, thread_name_prefix="download") as fetchers:
        links = list(fetchers.map(fetch, wanted))
    linked = [file.size_bytes for (file, _), is_link in zip(wanted, links, strict=True) if is_link]
    downloaded = [file.size_bytes for (file, _), is_link in zip(wanted, links, strict=True) if not is_link]
    return FetchReport(len(linked), sum(linked), len(downloaded), sum(downloaded))


def remember_files(root: Path, assignments: Sequence[ShardAssignment], directories: Sequence[Path]) -> None:
    """Write down what the fetched files contain, so that the next snapshot need not hash them again."""
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
    """Make a shard's engine forget the key groups that are not assigned: two range deletes, whatever the size."""
    own, whole = assignment.key_groups, assignment.shard.key_groups
    if own.start > whole.start:
        engine.delete_range(whole.start_key, own.start_key)
    if own.end < whole.end:
        engine.delete_range(own.end_key, whole.end_key)


def replay(
    store: ObjectStore, changelogs: Sequence[ChangelogHandle], key_groups: KeyGroupRange, engine: Engine, scratch: Path
) -> None:
    """Apply changelogs in order, clipped; they are read ahead several at a time.

    Args:
        store: Where they are.
        changelogs: In the order of their batches.
        key_groups: What the engine answers for.
        engine: The subtask's, of the state before them.
        scratch: A directory for files on their way; it is made and removed.
    """
    with local_failures(scratch):
        scratch.mkdir(parents=True)

    def fetch(handle: ChangelogHandle) -> tuple[list[SortedRun], list[Path]]:
        files = [scratch / uuid.uuid4().hex for _ in handle.sorted_files]
        for sorted_file, target in zip(handle.sorted_files, files, strict=True):
            store.download(sorted_file.path, target, size_bytes=sorted_file.size_bytes, sha256=sorted_file.sha256)
        return read_changelog(store, handle), files

    with ThreadPoolExecutor(DOWNLOADS_AT_A_TIME, thread_name_prefix="changelog") as readers:
        for start in range(0, len(changelogs), DOWNLOADS_AT_A_TIME):  # bounded: what is read ahead is in memory
            some = changelogs[start : start + DOWNLOADS_AT_A_TIME]
            for handle, (runs, files) in zip(some, readers.map(fetch, some), strict=True):
                engine.write_runs(clip_runs(runs, key_groups))
                _ingest(engine, handle, files, key_groups)
                reach("restore.changelog_read")
    with local_failures(scratch):
        scratch.rmdir()


def _ingest(engine: Engine, handle: ChangelogHandle, files: Sequence[Path], key_groups: KeyGroupRange) -> None:
    for sorted_file, file in zip(handle.sorted_files, files, strict=True):
        engine.ingest(sorted_file.family, [file])
        file.unlink()
        if handle.key_group_start < key_groups.start:
            engine.delete_range(b"", key_groups.start_key, sorted_file.family)
        if handle.key_group_end > key_groups.end:
            engine.delete_range(key_groups.end_key, None, sorted_file.family)


def local_snapshot_directories(local_root: Path, job_id: JobId, uid: OperatorUid) -> list[Path]:
    """Directories on this host with files of an operator's snapshots, of any attempt and subtask; the newest first."""
    operators = job_root(local_root, job_id).glob(f"attempt-*/{path_segment(uid)}")
    found = [entry for operator in operators for entry in operator.glob(f"subtask-*/{SNAPSHOTS_NAME}/*")]
    return sorted(found, key=_modified_ns, reverse=True)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _linked(source: Path | None, target: Path) -> bool:
    if source is None:
        return False
    with local_failures(target):
        try:
            link_or_copy(source, target)
        except FileNotFoundError:  # removed meanwhile by the attempt that it belongs to
            return False
    return True
