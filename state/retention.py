"""Deleting what no checkpoint needs any more: planned from manifests and the log, then carried out.

What may be deleted is what nothing retained can reach. What only manifests and commits named that are gone goes at once;
what nobody ever named goes when it is old enough to be nobody's work in progress, for uploads precede the manifest that
names them. A manifest goes before the files that it names: whoever finds a manifest finds its files.

Why an older attempt's driver that is still alive does no harm: it asks whether it is fenced after it has listed the
manifests and before it deletes; a new attempt opens, by which the older one is fenced, before it chooses the newest
manifest to start from. So either the older driver notices, or the manifest that the new attempt starts from is among
those that the older one retains. What the new attempt uploads bears its own number and is never in the older one's list.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state.claim import CLAIM_NAME, claim_path, read_claim
from state.errors import KeyscaleError
from state.layout import MANIFEST_NAME, Layout
from state.log import AttemptOpened, BatchCommitted, CommitLog, LogEntry, log_start
from state.manifest import Manifest, SnapshotKind, read_manifest
from state.objects import ObjectInfo, ObjectNotFoundError, ObjectStore
from state.sealed import DocumentCorruptError, FormatTooNewError
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from state.identifiers import CheckpointId, JobId

logger = logging.getLogger(__name__)

AGE_FLOOR_MS = 60 * 60 * 1000
_DELETES_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What is kept.

    Attributes:
        retained_count: How many of the newest readable checkpoints.
        age_floor_ms: Nothing that no manifest names is deleted before it is this old. Must exceed the longest upload, the
            longest sleep of a process, and the difference of the clocks.
        protected: Paths of further manifests to keep, such as one that another job was restored from. Savepoints are always kept, and
            the manifest that the newest attempt was restored from is until it has a checkpoint of its own.
        discarded: Paths of manifests that their owner wants gone: a savepoint that the user deletes, or one that was
            claimed and is subsumed.
    """

    retained_count: int = 3
    age_floor_ms: int = AGE_FLOOR_MS
    protected: frozenset[str] = frozenset()
    discarded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RetentionFacts:
    """All that the plan is made from.

    Attributes:
        job_id: Whose objects.
        objects: Every object of the job, and of the savepoints that it has claimed.
        manifests: Every manifest of the job that can be read, by path; and every one of other jobs that may name files
            of this one.
        unreadable: Paths of manifests that are there and cannot be read: nobody knows what they name.
        entries: The job's log entries that can be read, by position.
        lost: Directories of the job's own savepoints that another job has claimed.
        now_ms: Milliseconds since the epoch, by the store's clock as near as can be.
    """

    job_id: JobId
    objects: Sequence[ObjectInfo]
    manifests: Mapping[str, Manifest]
    unreadable: frozenset[str]
    entries: Mapping[int, LogEntry]
    now_ms: int
    lost: frozenset[str] = frozenset()

    @property
    def claimed(self) -> frozenset[str]:
        """Paths of the manifests that the job has claimed, at whatever time."""
        return claimed_by(self.entries)


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """What to delete, in this order.

    Attributes:
        manifests: First.
        files: Then these.
        subsumed: The checkpoints that go with it.
        deleted_bytes: Sum of all sizes.
    """

    manifests: tuple[ObjectInfo, ...]
    files: tuple[ObjectInfo, ...]
    subsumed: tuple[CheckpointId, ...]
    deleted_bytes: int


def claimed_by(entries: Mapping[int, LogEntry]) -> frozenset[str]:
    """Paths of the manifests that a log's attempts have claimed."""
    return frozenset(
        entry.restored_from
        for entry in entries.values()
        if isinstance(entry, AttemptOpened) and entry.claims and entry.restored_from is not None
    )


class RetentionError(KeyscaleError):
    """What to delete cannot be decided safely."""

    code = "STATE_RETENTION_BLOCKED"
    domain = "external"
    advice = (
        "Nothing was deleted. Repair or remove the manifest named in the message; space is not reclaimed until then."
    )


def plan_deletion(facts: RetentionFacts, policy: RetentionPolicy) -> DeletionPlan:
    """Decide what to delete. Pure.

    Raises:
        RetentionError: A manifest that must be kept cannot be read, so nobody knows which files it names.
    """
    retained = _retained(facts, policy)
    blocking = sorted(facts.unreadable - policy.discarded)
    if blocking:
        raise RetentionError(f"{blocking[0]} cannot be read, so nobody knows which files it needs")
    layout = Layout(facts.job_id)
    reachable = {file.path for manifest in retained.values() for file in manifest.files()} | set(retained)
    first_needed = _first_needed_position(facts, retained)
    last = max(facts.entries, default=0)
    reachable |= _changelogs(facts.entries, range(first_needed, last + 1))
    reachable |= _needed_entries(facts.entries, first_needed, layout)
    gone = (facts.manifests.keys() | policy.discarded | facts.claimed) - retained.keys()
    done = {file.path for path, manifest in facts.manifests.items() if path in gone for file in manifest.files()}
    done |= _changelogs(facts.entries, range(first_needed))
    manifests, files = [], []
    directories = {_directory(path): path for path in facts.claimed}
    owned = (layout.job, *directories)
    # As long as any of its files is needed, the mark of a claim keeps its first owner from deleting them.
    reachable |= {claim_path(path) for each, path in directories.items() if any(map(_starts(each), reachable))}
    for info in facts.objects:
        if not info.path.startswith(owned) or info.path.startswith(tuple(facts.lost)) or info.path in reachable:
            continue
        if info.path in gone:
            manifests.append(info)
        elif info.path.rpartition("/")[2] == MANIFEST_NAME:
            continue  # published since the manifests were read
        elif info.path in done or info.modified_ms + policy.age_floor_ms <= facts.now_ms:
            files.append(info)
    subsumed = tuple(
        sorted(
            found.checkpoint_id
            for info in manifests
            if (found := facts.manifests.get(info.path)) is not None and found.job_id == facts.job_id
        )
    )
    total = sum(info.size_bytes for info in (*manifests, *files))
    return DeletionPlan(tuple(manifests), tuple(files), subsumed, total)


def gather_facts(store: ObjectStore, job_id: JobId, now_ms: int) -> RetentionFacts:
    """Read all that a plan needs. Objects are listed before manifests are read: what comes later is not considered."""
    layout = Layout(job_id)
    objects = list(store.list(layout.job))
    log = CommitLog(store, layout)
    positions = [position for info in objects if (position := layout.log_position(info.path)) is not None]
    entries = log.read_each(positions)
    foreign = {_directory(path) for path in claimed_by(entries) if not path.startswith(layout.job)}
    objects += [info for directory in sorted(foreign) for info in store.list(directory)]
    manifests: dict[str, Manifest] = {}
    unreadable: set[str] = set()
    for info in objects:
        if info.path.rpartition("/")[2] != MANIFEST_NAME or not info.path.startswith(
            (layout.checkpoints, layout.savepoints, *foreign)
        ):
            continue
        try:
            manifests[info.path] = read_manifest(store, info.path)
        except (DocumentCorruptError, FormatTooNewError):
            unreadable.add(info.path)
        except ObjectNotFoundError:
            continue  # deleted meanwhile
    lost = {
        _directory(info.path)
        for info in objects
        if info.path.startswith(layout.savepoints) and info.path.endswith(f"/{CLAIM_NAME}")
        if (claim := read_claim(store, info.path)) is not None and claim.job_id != job_id
    }
    return RetentionFacts(job_id, objects, manifests, frozenset(unreadable), entries, now_ms, frozenset(lost))


def carry_out(store: ObjectStore, plan: DeletionPlan) -> None:
    """Delete what was planned. May die at any step and be planned anew.

    An object that was written again since it was listed is left alone.
    """
    store.delete([info.path for info in plan.manifests])
    reach("retention.manifests_deleted")
    for start in range(0, len(plan.files), _DELETES_AT_A_TIME):
        some = plan.files[start : start + _DELETES_AT_A_TIME]
        store.delete([info.path for info in some if store.head(info.path) == info])
        reach("retention.files_deleted")
    if plan.manifests or plan.files:
        logger.info(
            "deleted %d manifests and %d files, %d bytes", len(plan.manifests), len(plan.files), plan.deleted_bytes
        )


def _retained(facts: RetentionFacts, policy: RetentionPolicy) -> dict[str, Manifest]:
    checkpoints = sorted(
        (manifest.checkpoint_id, path)
        for path, manifest in facts.manifests.items()
        if manifest.kind is SnapshotKind.CHECKPOINT and manifest.job_id == facts.job_id
    )
    newest = {path for _, path in checkpoints[-policy.retained_count :]} if policy.retained_count else set()
    in_use = _restored_from(facts) or ()
    gone = policy.discarded | facts.claimed  # what was claimed is subsumed by the first checkpoint that follows it
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
    """What the attempt that runs was restored from (a path, or None in the tuple), or None once that does not matter.

    Until it has a checkpoint of its own its subtasks are rebuilt from there, whatever savepoints were taken meanwhile.
    """
    opened = [entry for _, entry in sorted(facts.entries.items()) if isinstance(entry, AttemptOpened)]
    if not opened:
        return (None,)
    superseded = any(
        manifest.attempt == opened[-1].attempt
        and manifest.kind is SnapshotKind.CHECKPOINT
        and manifest.job_id == facts.job_id
        for manifest in facts.manifests.values()
    )
    return None if superseded else (opened[-1].restored_from,)


def _first_needed_position(facts: RetentionFacts, retained: Mapping[str, Manifest]) -> int:
    """The first log entry that the attempt that runs, or a recovery from any retained checkpoint, reads.

    Savepoints do not count: they are self-contained, and an old one is restored by a rewind, which reads no log.
    """
    needed = [
        manifest.log_position
        for manifest in retained.values()
        if manifest.job_id == facts.job_id and manifest.kind is SnapshotKind.CHECKPOINT
    ]
    base = _restored_from(facts)
    if base is not None:
        needed.append(log_start(facts.manifests.get(base[0] or ""), facts.job_id))
    return min(needed, default=0) + 1


def _changelogs(entries: Mapping[int, LogEntry], positions: range) -> set[str]:
    return {
        path
        for position, entry in entries.items()
        if position in positions and isinstance(entry, BatchCommitted)
        for changelogs in entry.operators.values()
        for changelog in changelogs
        if changelog is not None
        for path in changelog.paths()
    }


def _needed_entries(entries: Mapping[int, LogEntry], first_needed: int, layout: Layout) -> set[str]:
    """Entries that recovery reads, and what stops older drivers for ever: every opening of an attempt, and the log's end.

    Without its last entry the log would seem to end earlier: an attempt that starts from an older manifest would open at a
    position that is behind an older driver's next one, and would not fence it.
    """
    return {
        layout.log_entry(position)
        for position, entry in entries.items()
        if position >= first_needed or isinstance(entry, AttemptOpened) or position == max(entries)
    }


def _directory(manifest_path: str) -> str:
    """The directory of a manifest, with the slash at its end."""
    return f"{manifest_path.rpartition('/')[0]}/"


def _starts(prefix: str) -> Callable[[str], bool]:
    return lambda path: path.startswith(prefix)
