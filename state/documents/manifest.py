"""The manifest: the immutable, versioned, checksummed listing of a checkpoint's files.

Publishing the manifest completes the checkpoint.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex

from ..errors import KeyGroupError
from ..keyed.schema import KeyedSchema
from ..keys.hashing import HashId
from ..keys.key_group_ranges import KeyGroupRanges
from ..keys.key_groups import KeyGroupRange
from ..layout import Layout
from ..objects.errors import ObjectExistsError, StoreUnavailableError
from .checked_document import DocumentCorruptError, decode_document, document_bytes, encode_document
from .job_counters import JobCounters
from .job_time import JobTime
from .rewind import Rewind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..objects.object_store import ObjectStore

KIND = "manifest"
FORMAT_VERSION = 1
OPERATORS_MAX = 1000
UID_CHARACTERS_MAX = 1000
"""Bounds of what a process accepts that reads manifests of others: answers to users name each operator."""
_PUBLISH_TRIES = 3


class ManifestTakenError(KeyscaleError):
    """An older attempt has published another manifest under the checkpoint's number."""

    code = "STATE_MANIFEST_TAKEN"
    domain = "external"
    advice = "Nothing to do: this checkpoint fails, and the next one gets the next number."


class SnapshotKind(StrEnum):
    """The owner of a snapshot: the system or the user.

    The system retains checkpoints by policy; savepoints are the user's.
    """

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


class FileHandle(msgspec.Struct, frozen=True):
    """A reference to one object, with its expected content.

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
    """A reference to one RocksDB instance's files and inclusive key groups."""

    key_group_start: int
    key_group_end: int
    files: tuple[FileHandle, ...]

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.key_group_start, self.key_group_end)


class SnapshotHandle(msgspec.Struct, frozen=True):
    """A reference to one subtask's snapshot.

    Its shards exactly cover the subtask's key group range.

    Attributes:
        subtask: Index of the subtask that took it.
        key_group_start: First key group of its range.
        key_group_end: Last one, inclusive.
        batch_id: The batch after which the state was captured; -1 before any.
        lineage: Identifies the state's content; see `keyscale.state.documents.state_version`.
        shards: Ordered by key group.
        schema: The schema of the entries; None if there are none.
        operator_state: The file of the subtask's operator state; omitted without operator state.
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
    def distinct_files(self) -> dict[str, FileHandle]:
        """The objects by path; shards may share a file after a rescale."""
        return {file.path: file for file in self.files()}

    @property
    def state_size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.distinct_files.values())

    @property
    def operator_state_file(self) -> FileHandle | None:
        return None if isinstance(self.operator_state, msgspec.UnsetType) else self.operator_state

    def files(self) -> Iterator[FileHandle]:
        yield from (file for shard in self.shards for file in shard.files)
        if self.operator_state_file is not None:
            yield self.operator_state_file


class OperatorDeclaration(msgspec.Struct, frozen=True):
    """An operator's declaration of its state; a restore is checked against it.

    Attributes:
        key_schema: The key columns: name and type, in order.
        schema: The schema of its states, as far as known.
    """

    key_schema: tuple[tuple[str, str], ...] = ()
    schema: KeyedSchema | None = None


class OperatorSnapshot(msgspec.Struct, frozen=True):
    """The snapshots of one operator, ordered by subtask index.

    Attributes:
        uid: The operator.
        parallelism: The number of its subtasks.
        declaration: Its declaration.
        subtasks: Their snapshots.
        key_group_entries: The counted or estimated entries of every key group; omitted if unknown, and by earlier
            versions.
        key_group_bytes: Likewise their bytes.
    """

    uid: OperatorUid
    parallelism: int
    declaration: OperatorDeclaration = msgspec.field(name="facts")  # its name in the stored manifest
    subtasks: tuple[SnapshotHandle, ...]
    key_group_entries: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    key_group_bytes: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET


class Manifest(msgspec.Struct, frozen=True):
    """A completed checkpoint or savepoint.

    Attributes:
        job_id: The job that took it.
        checkpoint_id: Its number, which a job never uses twice.
        kind: Checkpoint or savepoint.
        attempt: The attempt that took it.
        batch_id: The batch after which the state was captured; -1 before any.
        log_position: The last position of the job's commit log that it contains; 0 if it contains none.
        max_parallelism: Number of key groups.
        hash_id: How keys are hashed to key groups.
        created_at_ms: Milliseconds since the epoch.
        operators: Their snapshots.
        positions: The source positions, or None before any batch.
        sinks: Per sink, the token of the last batch's output, for publishing it again.
        savepoint_id: The savepoint's id; None for a checkpoint.
        time: The job's time; omitted if the job has no time.
        forked_from: The job that took it, if this is another job's copy of a checkpoint; else omitted.
        counters: The counters of the job that took it, after `batch_id`; left out in what earlier versions have
            written, and in another job's own copy.
        rewinds: The rewinds in the job's history, the oldest first; omitted without any, and in another job's own copy.
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
    forked_from: JobId | msgspec.UnsetType = msgspec.UNSET
    counters: JobCounters | msgspec.UnsetType = msgspec.UNSET
    rewinds: tuple[Rewind, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def path(self) -> str:
        """The path where it is published."""
        return Layout(self.job_id).manifest(self.checkpoint_id, self.savepoint_id)

    @property
    def state_size_bytes(self) -> int:
        """The size of all state; a shared file counts once."""
        return size_bytes_of(self.operators)

    @property
    def key_group_ranges(self) -> KeyGroupRanges | None:
        """The key group ranges of the subtasks that took it.

        None without operators, or if key groups are missing.
        """
        if not self.operators:
            return None
        try:
            return KeyGroupRanges.joined(snapshot.key_groups for snapshot in self.operators[0].subtasks)
        except KeyGroupError:  # a restore says which key groups are missing
            return None

    def operator(self, uid: OperatorUid) -> OperatorSnapshot | None:
        return next((operator for operator in self.operators if operator.uid == uid), None)

    def files(self) -> Iterator[FileHandle]:
        """Yields every object that a restore needs besides the manifest itself."""
        for operator in self.operators:
            for snapshot in operator.subtasks:
                yield from snapshot.files()
        if self.positions is not None:
            yield self.positions


def size_bytes_of(operators: Iterable[OperatorSnapshot]) -> int:
    """Returns the size of the distinct objects of operators' state."""
    subtasks = (snapshot for operator in operators for snapshot in operator.subtasks)
    return sum(distinct_bytes(subtasks))


def distinct_bytes(subtasks: Iterable[SnapshotHandle]) -> list[int]:
    """Returns the bytes that each subtask adds to the distinct objects.

    An object that an earlier subtask reads counts only there, so the sizes add up to the total.
    """
    seen: set[str] = set()
    distinct = []
    for snapshot in subtasks:
        files = snapshot.distinct_files
        distinct.append(sum(file.size_bytes for path, file in files.items() if path not in seen))
        seen |= files.keys()
    return distinct


def known_files(manifests: Iterable[Manifest], job_id: JobId, *, claimed: bool = False) -> dict[str, str]:
    """Returns the files that a new checkpoint need not upload, by SHA-256.

    Args:
        manifests: Manifests that are retained until the new one is published (the latest completed one).
        job_id: The job that takes the new checkpoint.
        claimed: Whether files of other jobs and of savepoints in these manifests belong to this job now (claim mode
            CLAIM). Otherwise (NO_CLAIM) the new checkpoint references only files of the job's own checkpoints,
            including files claimed earlier.
    """
    return {
        file.sha256: file.path
        for manifest in manifests
        if claimed or (manifest.kind is SnapshotKind.CHECKPOINT and manifest.job_id == job_id)
        for file in manifest.files()
        if file.shared
    }


def write_manifest(store: ObjectStore, manifest: Manifest) -> str:
    """Publishes a manifest, which completes the checkpoint, and returns its path.

    Publishing the same manifest again is harmless; a lost response is resolved by reading back.

    Raises:
        ManifestTakenError: Another manifest is published there.
        StoreUnavailableError: The store is unavailable, and it is unknown whether the manifest was published.
    """
    data = encode_manifest(manifest)
    failpoint("manifest.publishing")
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
    failpoint("manifest.published")
    return manifest.path


def read_manifest(store: ObjectStore, path: str) -> Manifest:
    """Reads and verifies a manifest.

    Raises:
        ObjectNotFoundError: The manifest does not exist.
        DocumentCorruptError: It is damaged, or has more than a process accepts that reads manifests of others.
        FormatTooNewError: A newer version wrote it.
    """
    manifest = decode_manifest(document_bytes(store, path, KIND), path)
    operators = manifest.operators
    if store.get_bytes_max is not None and (
        len(operators) > OPERATORS_MAX or any(len(each.uid) > UID_CHARACTERS_MAX for each in operators)
    ):
        raise DocumentCorruptError(
            f"{path} has more than {OPERATORS_MAX} operators, or an operator with a very long uid"
        )
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the bytes of a manifest's object; equal manifests give equal bytes."""
    return encode_document(KIND, FORMAT_VERSION, manifest)


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Returns the manifest in a document's bytes; see `read_manifest`.

    `where` names the document in errors.
    """
    return decode_document(data, KIND, FORMAT_VERSION, Manifest, where)
