"""A point in a job's history: the end of a committed batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.units import counted

from ..documents.log_entries import BatchCommitted
from ..documents.manifest import read_manifest
from ..errors import StateError
from ..keys.key_groups import KeyGroupRange
from ..layout import Layout, split_location
from ..log.commit_log import CommitLog, LogGapError
from ..log.recovery import NothingUsableError, recover
from ..log.resolution import BaseDisownedError, last_rewind, resolve
from ..objects.opening import open_store
from .foreign_files import foreign_files

if TYPE_CHECKING:
    from keyscale.identifiers import BatchId, JobId

    from ..documents.changelog import ChangelogHandle
    from ..documents.manifest import Manifest
    from ..keys.hashing import HashId
    from ..log.recovery import Recovery
    from ..log.resolution import OperatorHistory, ResumePoint
    from ..objects.object_store import ObjectStore


class UnknownStateError(StateError):
    """A job's state lacks the operator, or the operator lacks the state."""

    code = "STATE_UNKNOWN"
    domain = "user"
    advice = "Use one of the names in the message; `./keyscale state tables LOCATION` lists them."


class BatchNotStoredError(StateError):
    """The state after a batch cannot be read."""

    code = "STATE_BATCH_NOT_STORED"
    domain = "user"
    advice = (
        "Ask for the latest batch, or for a batch between the oldest retained checkpoint and the latest commit; "
        "savepoints keep the state of their batch for as long as you want."
    )


class ForeignStateError(StateError):
    """A job's state includes objects of another job."""

    code = "STATE_FOREIGN"
    domain = "user"
    advice = (
        "Ask again after the job's next checkpoint, which is its own. `./keyscale state sql LOCATION` reads with your"
        " own access to the object store."
    )


@dataclass(frozen=True, slots=True)
class StatePoint:
    """All state of a job after one committed batch.

    Attributes:
        store: The object store with the state.
        manifest: The snapshot that the state begins with; None: it begins empty.
        resume: The snapshot's state followed by the changelogs of later batches.
    """

    store: ObjectStore
    manifest: Manifest | None
    resume: ResumePoint

    @classmethod
    def of_location(cls, location: str) -> StatePoint:
        """Returns the state in the checkpoint or savepoint at a location.

        Args:
            location: The URL of its manifest, or of the manifest's directory.

        Raises:
            LocationError: The location does not lead to a manifest.
            ObjectNotFoundError: The manifest does not exist.
            DocumentCorruptError, FormatTooNewError: The manifest cannot be read.
            StoreUnavailableError: The object store is unavailable.
        """
        root, path = split_location(location)
        return cls.of_path(open_store(root), path)

    @classmethod
    def of_path(cls, store: ObjectStore, path: str) -> StatePoint:
        """Returns the state in the snapshot with a manifest's path.

        Raises the errors of `read_manifest`.
        """
        return cls.of_manifest(store, read_manifest(store, path))

    @classmethod
    def of_manifest(cls, store: ObjectStore, manifest: Manifest) -> StatePoint:
        """Returns the state in a checkpoint or savepoint."""
        return cls(store, manifest, resolve(manifest, [], manifest.job_id))

    @classmethod
    def of_job(cls, store: ObjectStore, job_id: JobId, batch_id: BatchId | None = None) -> StatePoint:
        """Returns a job's state after a committed batch, by default the latest.

        Raises:
            BatchNotStoredError: The job has not committed the batch, or its state was cleaned up.
            KeyscaleError: The store does not answer, or its content cannot be read.
        """
        recovery = recover(store, job_id, None)
        latest = recovery.resume.batch_id
        if batch_id is None or batch_id == latest:
            return cls(store, recovery.base.manifest, recovery.resume)
        if batch_id > latest:
            raise BatchNotStoredError(f"the job has committed batch {latest}, not yet batch {batch_id}")
        try:
            base = base_before(store, job_id, recovery, batch_id)
            entries = CommitLog(store, Layout(job_id)).history(base)
            entries = entries[last_rewind(entries) or 0 :]
            ends = (
                place
                for place, (_, entry) in enumerate(entries, 1)
                if isinstance(entry, BatchCommitted) and entry.batch_id <= batch_id
            )
            return cls(store, base, resolve(base, entries[: max(ends, default=0)], job_id))
        except (BaseDisownedError, LogGapError):
            raise BatchNotStoredError(f"the state after batch {batch_id} was cleaned up") from None

    @property
    def batch_id(self) -> BatchId:
        """The batch after which the state is read; -1 before any."""
        return self.resume.batch_id

    @property
    def max_parallelism(self) -> int:
        """The number of key groups.

        Raises:
            BatchNotStoredError: The job has never run.
        """
        return self._fixed()[0]

    @property
    def hash_id(self) -> HashId:
        """The hash of keys; raises as `max_parallelism`."""
        return self._fixed()[1]

    def operator(self, uid: str) -> OperatorHistory:
        """Returns the parts of an operator's state.

        Raises:
            UnknownStateError: The job has no such operator.
        """
        for known, history in self.resume.operators.items():
            if known == uid:
                return history
        known_uids = ", ".join(self.resume.operators) or "none"
        raise UnknownStateError(f"operator {uid!r} is unknown; the operators are: {known_uids}")

    def shard_ranges(self, uid: str) -> tuple[KeyGroupRange, ...]:
        """Returns the key groups of an operator's shards, in order.

        A shard is the smallest part that is fetched at once. An operator without a snapshot counts as a single shard.
        """
        shards = [shard.key_groups for each in self.operator(uid).snapshots for shard in each.shards]
        return tuple(sorted(shards)) or (KeyGroupRange(0, self.max_parallelism - 1),)

    def size_bytes(self, uid: str, key_groups: KeyGroupRange) -> int:
        """Returns the bytes that a read of key groups fetches."""
        history = self.operator(uid)
        files = {
            file.path: file.size_bytes
            for snapshot in history.snapshots
            for shard in snapshot.shards
            if shard.key_groups.intersection(key_groups)
            for file in shard.files
        }
        for changelog in history.changelogs:
            if changelog.key_groups.intersection(key_groups):
                files[changelog.path] = changelog.size_bytes
                files |= {file.path: file.size_bytes for file in changelog.sorted_files}
        return sum(files.values())

    def check_own(self, job_id: JobId) -> None:
        """Checks that all state is in objects of a job.

        A job writes its own manifests and log. A reader with more rights than the job must not read other jobs' objects
        for it.

        Raises:
            ForeignStateError: An object belongs to another job.
            StoreUnavailableError: The store is unavailable.
        """
        if self.manifest is not None and self.manifest.job_id != job_id:
            raise ForeignStateError(f"the state begins with a snapshot of job {self.manifest.job_id!r}")
        foreign = [] if self.manifest is None else foreign_files(self.store, self.manifest)
        if foreign:
            raise ForeignStateError(
                f"the state has {counted(len(foreign), 'object')} of another job, such as {foreign[0]}"
            )
        for history in self.resume.operators.values():
            for changelog in history.changelogs:
                check_own_changelog(changelog, job_id)

    def _fixed(self) -> tuple[int, HashId]:
        if self.resume.max_parallelism is None or self.resume.hash_id is None:
            raise BatchNotStoredError("the job has never run, so it has no state")
        return self.resume.max_parallelism, self.resume.hash_id


def base_before(store: ObjectStore, job_id: JobId, recovery: Recovery, batch_id: BatchId) -> Manifest | None:
    """Returns the newest snapshot of a job's history up to a batch.

    None: there is no such snapshot, and the state follows from the changelogs alone.
    """
    newer: set[str] = set()
    while (base := recovery.base.manifest) is not None and base.batch_id > batch_id:
        newer.add(base.path)
        try:
            recovery = recover(store, job_id, None, excluded=newer)
        except NothingUsableError:
            return None
    return base


def check_own_changelog(changelog: ChangelogHandle, job_id: JobId) -> None:
    """Checks that a changelog has only objects of a job.

    Raises:
        ForeignStateError: An object belongs to another job.
    """
    for path in changelog.paths():
        if not path.startswith(Layout(job_id).job):
            raise ForeignStateError(f"the log of job {job_id!r} names {path}, which is not the job's")
