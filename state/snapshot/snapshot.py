"""A subtask's snapshot: a short synchronous part and an asynchronous upload.

The synchronous part makes hard links; the upload runs beside the next batches.
"""

from __future__ import annotations

import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint

from ..documents.manifest import FileHandle, ShardHandle, SnapshotHandle
from ..engine.rocksdb_settings import RocksDbSettings
from ..errors import StoreCorruptError
from ..keyed.cleanup import Occasion, expired_entries
from ..local.damage import give_up_local_files
from ..local.file_index import FileIdentity, IndexedFile, hash_file, known_hashes, write_index
from ..local.subtask_directory import local_failures, remove_older_attempts, snapshots_root
from ..objects.errors import ObjectNotFoundError
from ..operator_state.operator_files import NAME as OPERATOR_STATE_NAME
from .expired_copy import clean_copies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from msgspec import UnsetType

    from keyscale.identifiers import Attempt, CheckpointId, JobId, OperatorUid, SubtaskIndex

    from ..documents.state_version import StateVersion
    from ..engine.engine import Engine
    from ..keyed.batch_clock import Clock
    from ..keyed.schema import KeyedSchema
    from ..keyed.ttl import Ttl
    from ..keys.key_groups import KeyGroupRange
    from ..layout import Layout
    from ..objects.object_store import ObjectStore
    from ..operator_state.backend import OperatorStateBackend

UPLOADS_AT_A_TIME = 8
IMMUTABLE_SUFFIX = ".sst"
_LOCAL_SNAPSHOTS_KEPT = 2  # the newest may still fail to become a checkpoint


class LocalSnapshotLostError(KeyscaleError):
    """The hard-linked files of a snapshot are no longer on this host."""

    code = "STATE_LOCAL_SNAPSHOT_LOST"
    domain = "external"
    advice = (
        "Nothing to do: this checkpoint fails; the subtask has probably moved to another host. The next one follows."
    )


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    """A subtask's state at one version, hard-linked on this host.

    Small and picklable.

    Attributes:
        directory: Its directory; shard i is in subdirectory i.
        local_root: The root of all local files on the host.
        job_id: The job.
        operator_uid: The operator.
        subtask: The subtask.
        attempt: The attempt that took it.
        checkpoint_id: The checkpoint that it was taken for.
        unique: A string unique to this try of the snapshot.
        version: The state's version.
        key_groups: The subtask's range.
        shards: Each shard's range.
        schema: The schema of its entries.
        ttls: The TTL of each state with a TTL, as far as this attempt has declared its states on this host.
        settings: Settings of the subtask's stores.
        consolidation: Directory of a consolidation for `keyscale.state.consolidation.consolidator` to carry out, or
            None.
    """

    directory: str
    local_root: str
    job_id: JobId
    operator_uid: OperatorUid
    subtask: SubtaskIndex
    attempt: Attempt
    checkpoint_id: CheckpointId
    unique: str
    version: StateVersion
    key_groups: KeyGroupRange
    shards: tuple[KeyGroupRange, ...]
    schema: KeyedSchema | None
    ttls: Mapping[str, Ttl] = field(default_factory=dict)
    settings: RocksDbSettings = field(default_factory=RocksDbSettings)
    consolidation: str | None = None


class UploadedSnapshot(NamedTuple):
    """A reference to a subtask's snapshot, with the uploaded bytes."""

    handle: SnapshotHandle
    uploaded_bytes: int


@dataclass(frozen=True, slots=True)
class _LocalFile:
    shard: int
    path: Path
    identity: FileIdentity

    @property
    def immutable(self) -> bool:
        return self.path.suffix == IMMUTABLE_SUFFIX


def link_snapshot(directory: Path, shards: Sequence[Engine]) -> None:
    """Makes a directory a consistent copy of the shards.

    This is the synchronous part of a snapshot.
    """
    with local_failures(directory):
        directory.mkdir(parents=True)
    for engine in shards:
        engine.begin_flush()
    for number, engine in enumerate(shards):
        engine.checkpoint(directory / str(number))
        failpoint("snapshot.shard_linked")


def write_operator_state(directory: Path, operator: OperatorStateBackend) -> None:
    """Writes existing operator state beside the shards of a local snapshot."""
    if not operator.is_empty:
        with local_failures(directory):
            (directory / OPERATOR_STATE_NAME).write_bytes(operator.snapshot().to_bytes())


def local_snapshot_directory(subtask_root: Path, checkpoint_id: CheckpointId) -> tuple[Path, str]:
    """Returns a new directory for a local snapshot, and its unique string."""
    unique = uuid.uuid4().hex
    return snapshots_root(subtask_root) / f"{checkpoint_id}-{unique}", unique


def upload_snapshot(
    snapshot: LocalSnapshot,
    store: ObjectStore,
    layout: Layout,
    known: Mapping[str, str],
    savepoint_id: str | None = None,
    *,
    copies: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> UploadedSnapshot:
    """Uploads a local snapshot's files that the store lacks.

    This is the asynchronous part of a snapshot.

    Args:
        snapshot: A snapshot on this host.
        store: The object store.
        layout: Paths of the job that takes the checkpoint.
        known: Immutable files, path by SHA-256, that the new checkpoint may reference (`known_files`).
        savepoint_id: Makes the upload part of a savepoint: every file gets a copy of its own, made inside the store
            where the store already has the content.
        copies: Further immutable files in the store that may be copied, such as the files of the restored savepoint.
        clock: A savepoint omits entries that have expired by this clock if their TTL says so; None: it omits none.

    Raises:
        LocalSnapshotLostError: The snapshot is not on this host.
        StoreCorruptError, DiskFullError, DiskReadOnlyError, StoreIOError: Expired entries cannot be removed from it.
        StoreUnavailableError: The store is unavailable; nothing references the files uploaded so far.
    """
    if savepoint_id is not None and clock is not None:
        _leave_out_expired(snapshot, clock)
    files = _local_files(snapshot)
    hashes = _hashes(Path(snapshot.directory), files)
    upload = _Upload(snapshot, store, layout, known, {**(copies or {}), **known}, savepoint_id)
    with ThreadPoolExecutor(UPLOADS_AT_A_TIME, thread_name_prefix="upload") as uploaders:
        stored = list(uploaders.map(upload.store_file, files, hashes))
    shards = tuple(
        ShardHandle(
            key_groups.start,
            key_groups.end,
            tuple(handle for file, (handle, _) in zip(files, stored, strict=True) if file.shard == number),
        )
        for number, key_groups in enumerate(snapshot.shards)
    )
    operator_state = _upload_operator_state(snapshot, store, layout, savepoint_id)
    _forget_older(snapshot)
    handle = SnapshotHandle(
        subtask=snapshot.subtask,
        key_group_start=snapshot.key_groups.start,
        key_group_end=snapshot.key_groups.end,
        batch_id=snapshot.version.batch_id,
        lineage=snapshot.version.lineage,
        shards=shards,
        schema=snapshot.schema,
        operator_state=operator_state,
    )
    # By path: two shards may share a file, which is one object.
    added_bytes = sum({handle.path: added_bytes for handle, added_bytes in stored}.values())
    if handle.operator_state_file is not None:
        added_bytes += handle.operator_state_file.size_bytes
    return UploadedSnapshot(handle, added_bytes)


def _upload_operator_state(
    snapshot: LocalSnapshot, store: ObjectStore, layout: Layout, savepoint_id: str | None
) -> FileHandle | UnsetType:
    """Uploads operator state, of which each snapshot has its own small copy."""
    local = Path(snapshot.directory) / OPERATOR_STATE_NAME
    if not local.exists():
        return UNSET
    path = layout.operator_state_file(
        checkpoint_id=snapshot.checkpoint_id,
        savepoint_id=savepoint_id,
        uid=snapshot.operator_uid,
        subtask=snapshot.subtask,
        unique=snapshot.unique,
    )
    store.upload(local, path)
    return FileHandle(OPERATOR_STATE_NAME, path, local.stat().st_size, hash_file(local))


@dataclass(frozen=True, slots=True)
class _Upload:
    snapshot: LocalSnapshot
    store: ObjectStore
    layout: Layout
    known: Mapping[str, str]
    copies: Mapping[str, str]
    savepoint_id: str | None

    def store_file(self, file: _LocalFile, sha256: str) -> tuple[FileHandle, int]:
        """Brings a file into the store; returns its handle and added bytes."""
        path, added_bytes = self._store_immutable(file, sha256) if file.immutable else self._store_exclusive(file)
        failpoint("snapshot.file_uploaded")
        return FileHandle(file.path.name, path, file.identity.size_bytes, sha256, shared=file.immutable), added_bytes

    def _store_immutable(self, file: _LocalFile, sha256: str) -> tuple[str, int]:
        if self.savepoint_id is None:
            if sha256 in self.known:
                return self.known[sha256], 0
            path = self.layout.shared_file(sha256, self.snapshot.attempt, self.snapshot.checkpoint_id)
        else:
            path = self.layout.savepoint_file(
                self.savepoint_id, sha256, self.snapshot.attempt, self.snapshot.checkpoint_id
            )
        if not self._copied(sha256, path):
            self.store.upload(file.path, path, immutable=True)
        return path, file.identity.size_bytes

    def _copied(self, sha256: str, path: str) -> bool:
        if sha256 not in self.copies:
            return False
        try:
            self.store.copy(self.copies[sha256], path)
        except ObjectNotFoundError:  # its owner has deleted it; the file here has the same content
            return False
        return True

    def _store_exclusive(self, file: _LocalFile) -> tuple[str, int]:
        path = self.layout.exclusive_file(
            checkpoint_id=self.snapshot.checkpoint_id,
            savepoint_id=self.savepoint_id,
            uid=self.snapshot.operator_uid,
            subtask=self.snapshot.subtask,
            unique=self.snapshot.unique,
            shard=file.shard,
            name=file.path.name,
        )
        self.store.upload(file.path, path)
        return path, file.identity.size_bytes


def _leave_out_expired(snapshot: LocalSnapshot, clock: Clock) -> None:
    expired = expired_entries(snapshot.schema, snapshot.ttls, clock, Occasion.FULL_SNAPSHOT)
    directory = Path(snapshot.directory)
    if directory.is_dir():  # else `_local_files` reports the loss
        copies = [directory / str(number) for number in range(len(snapshot.shards))]
        try:
            clean_copies(copies, expired, snapshot.settings)
        except StoreCorruptError:  # the store's own files are the same
            give_up_local_files(directory.parent.parent)
            raise


def _local_files(snapshot: LocalSnapshot) -> list[_LocalFile]:
    try:
        return [
            _LocalFile(number, path, FileIdentity.of(path))
            for number in range(len(snapshot.shards))
            for path in sorted((Path(snapshot.directory) / str(number)).iterdir())
        ]
    except FileNotFoundError as error:
        raise LocalSnapshotLostError(
            f"the local files of checkpoint {snapshot.checkpoint_id} are not on this host"
        ) from error


def _hashes(directory: Path, files: Sequence[_LocalFile]) -> list[str]:
    """Returns each file's SHA-256.

    Immutable files that an earlier snapshot or the restore has hashed are not read.
    """
    subtask_root = directory.parent.parent
    known = known_hashes([*directory.parent.iterdir(), *subtask_root.iterdir()])
    hashes = [known.get(file.identity) if file.immutable else None for file in files]
    with ThreadPoolExecutor(2, thread_name_prefix="hash") as hashers:  # hashing releases the interpreter's lock
        missing = [file.path for file, sha256 in zip(files, hashes, strict=True) if sha256 is None]
        computed = iter(list(hashers.map(hash_file, missing)))
    complete = [sha256 or next(computed) for sha256 in hashes]
    write_index(
        directory,
        (
            IndexedFile(str(file.path.relative_to(directory)), file.identity, sha256)
            for file, sha256 in zip(files, complete, strict=True)
            if file.immutable
        ),
    )
    return complete


def _forget_older(snapshot: LocalSnapshot) -> None:
    """Removes local snapshots that are no longer needed, and older attempts' files.

    A job has one upload at a time, so older snapshots have been uploaded or given up.
    """
    current = Path(snapshot.directory)
    older = sorted(
        (number, entry)
        for entry in current.parent.iterdir()
        if (number := int(entry.name.partition("-")[0])) <= snapshot.checkpoint_id and entry != current
    )
    for _, entry in older[: max(0, len(older) + 1 - _LOCAL_SNAPSHOTS_KEPT)]:
        shutil.rmtree(entry, ignore_errors=True)
    remove_older_attempts(Path(snapshot.local_root), snapshot.job_id, snapshot.attempt)
