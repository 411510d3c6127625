"""A deletion plan: the files that retained checkpoints do not need; pure.

The plan follows from names, manifests and openings. A file may be deleted if nothing retained references it. A file
that a deleted manifest named is deleted at once. So is a changelog of a batch that every retained checkpoint contains;
its name holds attempt and batch, so its log entry is not read. A file that was never named is deleted only when it is
too old to be work in progress, because uploads precede the manifest that names them. A changelog after that batch is
never too old: the open attempt may still commit it, however long the batch runs. A manifest is deleted before its
files: if a manifest is there, so are its files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt

from ..documents.claim import claim_path
from ..documents.manifest import Manifest, SnapshotKind
from ..documents.state_version import NO_BATCH
from ..layout import MANIFEST_NAME, Layout
from ..log.resolution import log_start, manifest_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyscale.identifiers import BatchId, CheckpointId, JobId

    from ..documents.log_entries import AttemptOpened
    from ..objects.object_store import ObjectInfo

AGE_FLOOR_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The rule by which checkpoints are retained.

    Savepoints are always retained. So is the manifest that the newest attempt was restored from, until the attempt has
    its own checkpoint.

    Attributes:
        retained_count: How many of the newest readable checkpoints are retained.
        age_floor_ms: The age below which a file without a manifest is kept. Must exceed the longest upload, the longest
            sleep of a process, and the difference between clocks.
        protected: Paths of further manifests to retain, such as the origin of another job.
        discarded: Paths of manifests whose owner wants them deleted: a savepoint that the user deletes, or a claimed
            savepoint that is subsumed.
    """

    retained_count: int = 3
    age_floor_ms: int = AGE_FLOOR_MS
    protected: frozenset[str] = frozenset()
    discarded: frozenset[str] = frozenset()

    @classmethod
    def for_uploads(cls, timeout_ms: int, retained_count: int, protected: frozenset[str]) -> RetentionPolicy:
        """Returns the policy of a job with this timeout for uploads."""
        return cls(retained_count, max(AGE_FLOOR_MS, 2 * timeout_ms), protected)


@dataclass(frozen=True, slots=True)
class RetentionFacts:
    """The input of a deletion plan.

    Attributes:
        job_id: The job.
        objects: Every object of the job, and of the savepoints that it has claimed.
        manifests: By path, every readable manifest of the job, and of other jobs that may name files of this job.
        unreadable: Paths of unreadable manifests, which name unknown files.
        openings: The openings in the job's log, by position.
        now_ms: Milliseconds since the epoch, as close to the store's clock as possible.
        lost: Directories of the job's own savepoints that another job has claimed.
    """

    job_id: JobId
    objects: Sequence[ObjectInfo]
    manifests: Mapping[str, Manifest]
    unreadable: frozenset[str]
    openings: Mapping[int, AttemptOpened]
    now_ms: int
    lost: frozenset[str] = frozenset()

    def by_store_clock(self) -> RetentionFacts:
        """Returns the facts as of the newest object, if `now_ms` is later.

        A caller whose clock is ahead would take the files of a checkpoint in progress for old ones.
        """
        newest_ms = max((info.modified_ms for info in self.objects), default=self.now_ms)
        return replace(self, now_ms=min(self.now_ms, newest_ms))

    @property
    def claimed(self) -> frozenset[str]:
        """Paths of all manifests that the job has ever claimed."""
        return claimed_by(self.openings)


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """The objects to delete, in this order.

    Attributes:
        manifests: Deleted first.
        files: Deleted next.
        subsumed: The checkpoints that lose their manifest.
    """

    manifests: tuple[ObjectInfo, ...]
    files: tuple[ObjectInfo, ...]
    subsumed: tuple[CheckpointId, ...]


def claimed_by(openings: Mapping[int, AttemptOpened]) -> frozenset[str]:
    """Returns the paths of the manifests that a log's attempts have claimed."""
    return frozenset(
        entry.restored_from for entry in openings.values() if entry.claims and entry.restored_from is not None
    )


class RetentionError(KeyscaleError):
    """The files to delete cannot be decided safely."""

    code = "STATE_RETENTION_BLOCKED"
    domain = "external"
    advice = (
        "Nothing was deleted. Repair or remove the manifest named in the message; space is not reclaimed until then."
    )


def plan_deletion(facts: RetentionFacts, policy: RetentionPolicy) -> DeletionPlan:
    """Decides what to delete; pure.

    Raises:
        RetentionError: A manifest that must be retained cannot be read, so its files are unknown.
    """
    retained = _retained(facts, policy)
    blocking = sorted(facts.unreadable - policy.discarded)
    if blocking:
        raise RetentionError(f"{blocking[0]} cannot be read, so its files are unknown")
    layout = Layout(facts.job_id)
    reachable = {file.path for manifest in retained.values() for file in manifest.files()} | set(retained)
    needed = _needed_history(facts, retained)
    gone = (facts.manifests.keys() | policy.discarded | facts.claimed) - retained.keys()
    done = {file.path for path, manifest in facts.manifests.items() if path in gone for file in manifest.files()}
    manifests, files = [], []
    directories = {directory_of(path): path for path in facts.claimed}
    owned = (layout.job, *directories)
    # While a file of a savepoint is needed, the claim stays and keeps the first owner from deleting the savepoint.
    reachable |= {claim_path(path) for each, path in directories.items() if any(map(_starts(each), reachable))}
    for info in facts.objects:
        if not info.path.startswith(owned) or info.path.startswith(tuple(facts.lost)) or info.path in reachable:
            continue
        if info.path in gone:
            manifests.append(info)
        elif info.path.rpartition("/")[2] == MANIFEST_NAME:
            continue  # published since the manifests were read
        elif (is_needed := needed.needs(info.path, layout)) is not None:
            files += [] if is_needed else [info]
        elif info.path in done or info.modified_ms + policy.age_floor_ms <= facts.now_ms:
            files.append(info)
    subsumed = tuple(
        sorted(
            found.checkpoint_id
            for info in manifests
            if (found := facts.manifests.get(info.path)) is not None and found.job_id == facts.job_id
        )
    )
    return DeletionPlan(tuple(manifests), tuple(files), subsumed)


def _retained(facts: RetentionFacts, policy: RetentionPolicy) -> dict[str, Manifest]:
    checkpoints = sorted(
        (manifest_rank(manifest, facts.job_id), path)
        for path, manifest in facts.manifests.items()
        if manifest.kind is SnapshotKind.CHECKPOINT and manifest.job_id == facts.job_id
    )
    newest = {path for _, path in checkpoints[-policy.retained_count :]} if policy.retained_count else set()
    in_use = _restored_from(facts) or ()
    gone = policy.discarded | facts.claimed  # the first checkpoint after a claim subsumes the claimed snapshot
    return {
        path: manifest
        for path, manifest in facts.manifests.items()
        if path in in_use
        or (
            path not in gone
            and (
                path in newest
                or path in policy.protected
                or manifest.kind is SnapshotKind.SAVEPOINT
                or manifest.job_id != facts.job_id
            )
        )
    }


def _restored_from(facts: RetentionFacts) -> tuple[str | None] | None:
    """Returns the newest attempt's base in a tuple, or None.

    The base is a path or None; it matters until the attempt has its own checkpoint: its subtasks are rebuilt from the
    base, even if savepoints were taken since. After that the function returns None instead of a tuple.
    """
    opened = [entry for _, entry in sorted(facts.openings.items())]
    if not opened:
        return (None,)
    superseded = any(
        manifest.attempt == opened[-1].attempt
        and manifest.kind is SnapshotKind.CHECKPOINT
        and manifest.job_id == facts.job_id
        for manifest in facts.manifests.values()
    )
    return None if superseded else (opened[-1].restored_from,)


@dataclass(frozen=True, slots=True)
class _NeededHistory:
    """The log entries that a recovery reads or that fence older drivers.

    Attributes:
        position: The first position.
        attempt: The attempt of the entry before it.
        batch_id: The last batch committed before it.
        fences: Positions of all openings and of the last entry. Without its last entry the log would seem to end
            earlier: an attempt that starts from an older manifest would then open before an older driver's position.
    """

    position: int
    attempt: Attempt
    batch_id: BatchId
    fences: frozenset[int] = frozenset()

    @classmethod
    def after(cls, base: Manifest | None, job_id: JobId) -> _NeededHistory:
        """Returns the history needed to resume from a base (None: none)."""
        start = log_start(base, job_id)
        if base is None or not start:
            return cls(1, Attempt(0), NO_BATCH)
        return cls(start + 1, base.attempt, base.batch_id)

    def needs(self, path: str, layout: Layout) -> bool | None:
        """Returns whether a log entry or changelog is needed, or None.

        None is the result for any other object.
        """
        position = layout.log_position(path)
        if position is not None:
            return position >= self.position or position in self.fences
        changelog = layout.changelog_origin(path)
        if changelog is not None:  # attempts ascend in the log, and batches within an attempt
            return (changelog.attempt, changelog.batch_id) > (self.attempt, self.batch_id)
        return None


def _needed_history(facts: RetentionFacts, retained: Mapping[str, Manifest]) -> _NeededHistory:
    """Returns the part of the log that restores and recoveries may read.

    It serves the newest attempt and a recovery from any retained checkpoint. Savepoints do not count: they are
    self-contained, and an old savepoint is restored by a rewind, which does not read the log.
    """
    bases: list[Manifest | None] = [
        manifest
        for manifest in retained.values()
        if manifest.job_id == facts.job_id and manifest.kind is SnapshotKind.CHECKPOINT
    ]
    restored_from = _restored_from(facts)
    if restored_from is not None:
        bases.append(facts.manifests.get(restored_from[0] or ""))
    histories = [_NeededHistory.after(base, facts.job_id) for base in bases or [None]]
    layout = Layout(facts.job_id)
    last = max(filter(None, (layout.log_position(info.path) for info in facts.objects)), default=0)
    return replace(min(histories, key=lambda history: history.position), fences=frozenset({*facts.openings, last}))


def directory_of(manifest_path: str) -> str:
    """Returns the directory of a manifest, ending in a slash."""
    return f"{manifest_path.rpartition('/')[0]}/"


def _starts(prefix: str) -> Callable[[str], bool]:
    return lambda path: path.startswith(prefix)
