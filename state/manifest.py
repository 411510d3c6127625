"""The manifest: the immutable, versioned, checksummed listing of a checkpoint's files. Publishing it completes it."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from state.errors import KeyscaleError
from state.hashing import HashId
from state.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from state.job_time import JobTime
from state.key_groups import KeyGroupRange
from state.layout import Layout
from state.objects import ObjectCorruptError, ObjectExistsError, StoreUnavailableError
from state.schema import KeyedSchema
from state.sealed import seal, unseal
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from state.objects import ObjectStore

KIND = "manifest"
FORMAT_VERSION = 1
_PUBLISH_TRIES = 3


class ManifestTakenError(KeyscaleError):
    """Another manifest is published under the checkpoint's number: of an older attempt that is still alive."""

    code = "STATE_MANIFEST_TAKEN"
    domain = "external"
    advice = "This checkpoint fails; the next one has the next number."


class SnapshotKind(StrEnum):
    """Whose a snapshot is: the system's, retained by policy, or the user's."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


class FileHandle(msgspec.Struct, frozen=True):
    """One object, and what its content must be.

    Attributes:
        name: The file's name in its shard's directory.
        path: The object's path in the store.
        size_bytes: Its length.
        sha256: Hex digest of its content.
        shared: Whether several checkpoints may reference the object.
    """

    name: str
    path: str
    size_bytes: int
    sha256: str
    shared: bool = False


class ShardHandle(msgspec.Struct, frozen=True):
    """The files of one RocksDB instance, and the key groups (inclusive) for which it answers."""

    key_group_start: int
    key_group_end: int
    files: tuple[FileHandle, ...]

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.key_group_start, self.key_group_end)


class SnapshotHandle(msgspec.Struct, frozen=True):
    """One subtask's snapshot: its shards exactly cover its key group range.

    Attributes:
        subtask: Index of the subtask that took it.
        key_group_start: First key group of its range.
        key_group_end: Last one, inclusive.
        batch_id: The state is the one after this batch; -1 before any.
        lineage: Identifies the state's content; see `state.version`.
        shards: Ordered by key group.
        schema: How its entries are to be read; None if there are none.
        operator_state: The subtask's operator state; left out where there is none.
    """

    subtask: SubtaskIndex
    key_group_start: int
    key_group_end: int
    batch_id: BatchId
    lineage: str
    shards: tuple[ShardHandle, ...]
    schema: KeyedSchema | None = None
    operator_state: FileHandle | msgspec.UnsetType = msgspec.UNSET

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.key_group_start, self.key_group_end)

    @property
    def state_size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files())

    @property
    def operator_state_file(self) -> FileHandle | None:
        return None if isinstance(self.operator_state, msgspec.UnsetType) else self.operator_state

    def files(self) -> Iterator[FileHandle]:
        yield from (file for shard in self.shards for file in shard.files)
        if self.operator_state_file is not None:
            yield self.operator_state_file


class OperatorFacts(msgspec.Struct, frozen=True):
    """What an operator declares, against which a restore is checked.

    Attributes:
        key_schema: Its key columns: name and type, in order.
        schema: What its states hold, as far as it is known.
    """

    key_schema: tuple[tuple[str, str], ...] = ()
    schema: KeyedSchema | None = None


class OperatorSnapshot(msgspec.Struct, frozen=True):
    """All subtasks' snapshots of one operator, ordered by subtask index."""

    uid: OperatorUid
    parallelism: int
    facts: OperatorFacts
    subtasks: tuple[SnapshotHandle, ...]


class Manifest(msgspec.Struct, frozen=True):
    """A completed checkpoint or savepoint.

    Attributes:
        job_id: The job that took it.
        checkpoint_id: Its number, never used twice by a job.
        kind: Checkpoint or savepoint.
        attempt: The attempt that took it.
        batch_id: The state is the one after this batch; -1 before any.
        log_position: The job's commit log up to here, inclusive, is contained; 0 if none is.
        max_parallelism: Number of key groups.
        hash_id: How keys are hashed to key groups.
        created_at_ms: Milliseconds since the epoch.
        operators: Their snapshots.
        positions: The source positions (Spark's files), or None before any batch.
        sinks: Tokens of the last batch's output by sink, so that it can be published again.
        savepoint_id: Of a savepoint.
        time: How far the job has come in time; left out where it has not come anywhere.
    """

    job_id: JobId
    checkpoint_id: CheckpointId
    kind: SnapshotKind
    attempt: Attempt
    batch_id: BatchId
    log_position: int
    max_parallelism: int
    hash_id: HashId
    created_at_ms: int
    operators: tuple[OperatorSnapshot, ...]
    positions: FileHandle | None = None
    sinks: dict[str, str] = {}
    savepoint_id: str | None = None
    time: JobTime | msgspec.UnsetType = msgspec.UNSET

    @property
    def path(self) -> str:
        """Where it is published."""
        return Layout(self.job_id).manifest(self.checkpoint_id, self.savepoint_id)

    @property
    def state_size_bytes(self) -> int:
        return sum(snapshot.state_size_bytes for operator in self.operators for snapshot in operator.subtasks)

    def operator(self, uid: OperatorUid) -> OperatorSnapshot | None:
        return next((operator for operator in self.operators if operator.uid == uid), None)

    def files(self) -> Iterator[FileHandle]:
        """Every object that a restore needs besides the manifest itself."""
        for operator in self.operators:
            for snapshot in operator.subtasks:
                yield from snapshot.files()
        if self.positions is not None:
            yield self.positions


def known_files(manifests: Iterable[Manifest], job_id: JobId, *, claimed: bool = False) -> dict[str, str]:
    """What need not be uploaded again: paths of immutable files by their SHA-256.

    Args:
        manifests: Manifests that will be retained at least until the new one is published (the latest completed one).
        job_id: The job that takes the new checkpoint.
        claimed: Whether files of other jobs, and of savepoints, that these manifests name now belong to this job
            (claim mode CLAIM). Otherwise (NO_CLAIM) the new checkpoint depends on nothing but the job's own checkpoints,
            which may refer to files that were claimed before.
    """
    return {
        file.sha256: file.path
        for manifest in manifests
        if claimed or (manifest.kind is SnapshotKind.CHECKPOINT and manifest.job_id == job_id)
        for file in manifest.files()
        if file.shared
    }


def write_manifest(store: ObjectStore, manifest: Manifest) -> str:
    """Publish a manifest: the moment at which the checkpoint is complete. Returns its path.

    Publishing the same manifest again is harmless; a lost response is resolved by reading back.

    Raises:
        ManifestTakenError: Another one is published there.
        StoreUnavailableError: It is unknown whether it was published, and the store is away.
    """
    data = encode_manifest(manifest)
    reach("manifest.publishing")
    for left in reversed(range(_PUBLISH_TRIES)):
        try:
            store.create(manifest.path, data)
        except ObjectExistsError:
            if store.get(manifest.path) != data:
                raise ManifestTakenError(f"another manifest is published at {manifest.path}") from None
        except StoreUnavailableError:
            if not left:
                raise
            continue
        break
    reach("manifest.published")
    return manifest.path


def read_manifest(store: ObjectStore, path: str) -> Manifest:
    """Read and verify a manifest.

    Raises:
        ObjectNotFoundError: There is none.
        DocumentCorruptError: It is damaged.
        FormatTooNewError: A newer version wrote it.
    """
    return decode_manifest(store.get(path), path)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as the bytes of its object; equal manifests give equal bytes."""
    return seal(KIND, FORMAT_VERSION, manifest)


def decode_manifest(data: bytes, where: str) -> Manifest:
    """See `read_manifest`; `where` names the document in errors."""
    return unseal(data, KIND, FORMAT_VERSION, Manifest, where)


def write_positions(
    store: ObjectStore,
    layout: Layout,
    positions: Mapping[str, str],
    *,
    checkpoint_id: CheckpointId,
    savepoint_id: str | None,
    unique: str,
) -> FileHandle:
    """Store source positions (file contents by relative path) beside the manifest that will name them."""
    data = msgspec.json.encode(dict(positions), order="deterministic")
    path = layout.positions(checkpoint_id, savepoint_id, unique)
    store.put(path, data)
    return FileHandle("positions.json", path, len(data), hashlib.sha256(data).hexdigest())


def read_positions(store: ObjectStore, handle: FileHandle | None) -> dict[str, str]:
    """Source positions that a manifest names; empty if it names none.

    Raises:
        ObjectCorruptError: They are damaged.
    """
    if handle is None:
        return {}
    data = store.get(handle.path)
    if len(data) != handle.size_bytes or hashlib.sha256(data).hexdigest() != handle.sha256:
        raise ObjectCorruptError(f"{handle.path} does not have the length and SHA-256 recorded for it")
    return msgspec.json.decode(data, type=dict[str, str])
