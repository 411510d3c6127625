"""The meaning of the commit log: history's end and state's parts.

The functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt, BatchId, OperatorUid

from ..documents.job_counters import NOTHING_COUNTED, JobCounters
from ..documents.job_time import JobTime
from ..documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from ..documents.rewind import Rewind
from ..documents.state_version import NO_BATCH
from ..errors import KeyGroupError
from ..keyed.schema import merge_schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.identifiers import JobId

    from ..documents.changelog import ChangelogHandle
    from ..documents.manifest import (
        FileHandle,
        Manifest,
        OperatorDeclaration,
        OperatorSnapshot,
        SnapshotHandle,
    )
    from ..keyed.schema import KeyedSchema
    from ..keys.hashing import HashId
    from ..keys.key_group_ranges import KeyGroupRanges


class HistoryError(KeyscaleError):
    """The commit log contradicts itself or the manifest."""

    code = "STATE_HISTORY_INVALID"
    advice = "Do not restart the job; keep its log and report this with the driver's log."


class BaseDisownedError(KeyscaleError):
    """The history continues from another manifest.

    The job was rewound, or started from elsewhere.
    """

    code = "STATE_BASE_DISOWNED"
    domain = "user"
    advice = "Restore from the manifest named in the message, or rewind to the one you gave."


@dataclass(frozen=True, slots=True)
class OperatorHistory:
    """The parts of an operator's state.

    Attributes:
        snapshots: The base's snapshots, one per subtask that took it; empty before any checkpoint.
        changelogs: Changelogs committed after the base, ordered by batch, then by subtask; possibly of several
            parallelisms.
        declaration: The operator's last declaration; None before any.
        schema: The schema of the entries, merged from all of the above; None if there are none.
        operator_state: The newest operator state files of all subtasks, by index, of the attempt that wrote them last.
    """

    snapshots: tuple[SnapshotHandle, ...] = ()
    changelogs: tuple[ChangelogHandle, ...] = ()
    declaration: OperatorDeclaration | None = None
    schema: KeyedSchema | None = None
    operator_state: tuple[FileHandle | None, ...] = ()

    @property
    def has_state(self) -> bool:
        """Whether a restore without the operator would lose state."""
        return bool(self.snapshots or self.changelogs or any(self.operator_state))


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The end of a job's history, from which the job resumes.

    Attributes:
        batch_id: The batch committed last; -1 before any.
        planned: The batch planned after it, which must run with exactly its positions, or None.
        positions: Source position files since the manifest's own (which come first), including the planned batch's.
        replaces_positions: Whether `positions` replaces the manifest's own positions.
        counters: The job's own counters, as far as the history has them.
        operators: Each operator's history, by uid.
        next_position: The position of the next log entry.
        attempt: The highest opened attempt; 0 before any.
        sinks: Output tokens of the batch committed last, which must be published (again); empty if the manifest
            contains that batch.
        max_parallelism: As fixed by the history; None before any.
        hash_id: As fixed by the history; None before any.
        time: The job's time.
        rewinds: The rewinds in the history, the oldest first.
        key_group_ranges: The key group ranges of the last attempt that the history has; None before any.
    """

    batch_id: BatchId
    planned: BatchPlanned | None
    positions: dict[str, str]
    operators: dict[OperatorUid, OperatorHistory]
    next_position: int
    attempt: Attempt
    sinks: dict[str, str]
    max_parallelism: int | None
    hash_id: HashId | None
    time: JobTime = field(default_factory=JobTime)
    replaces_positions: bool = False
    counters: JobCounters = NOTHING_COUNTED
    rewinds: tuple[Rewind, ...] = ()
    key_group_ranges: KeyGroupRanges | None = None


def log_start(manifest: Manifest | None, job_id: JobId) -> int:
    """Returns the log position to resume after: 0 for another job's savepoint."""
    return manifest.log_position if manifest is not None and manifest.job_id == job_id else 0


def manifest_rank(manifest: Manifest, job_id: JobId) -> tuple[int, int]:
    """Returns a sort key that ranks the job's newest manifest highest.

    The position in the log decides. A number alone does not: an overtaken driver may publish a high number late.
    """
    return (log_start(manifest, job_id), manifest.checkpoint_id)


def resolve(manifest: Manifest | None, entries: Sequence[tuple[int, LogEntry]], job_id: JobId) -> ResumePoint:
    """Decides where a job's history ends; pure.

    Args:
        manifest: The checkpoint or savepoint to start from; None for a job without any.
        entries: The entries that `CommitLog.history` returns: the complete log after `log_start(manifest, job_id)`, or
            from the last rewind on.
        job_id: The owner of the log.

    Raises:
        BaseDisownedError: The history does not continue from this manifest.
        HistoryError: The entries contradict each other or the manifest.
        StateSchemaMismatchError: The schemas in the entries contradict each other.
    """
    start = log_start(manifest, job_id)
    history = _History(manifest, own=manifest is not None and manifest.job_id == job_id)
    rewind = last_rewind(entries)
    if rewind is not None:
        entries = entries[rewind:]
        start = entries[0][0] - 1  # earlier entries do not count
    for expected, (position, entry) in enumerate(entries, start + 1):
        if position != expected:
            raise HistoryError(f"log position {expected} is missing")
        match entry:
            case AttemptOpened():
                history.open(entry, first=position == 1)
            case BatchPlanned():
                history.plan(entry)
            case BatchCommitted():
                history.commit(entry)
    return history.resume_point(start + len(entries) + 1)


def last_rewind(entries: Sequence[tuple[int, LogEntry]]) -> int | None:
    """Returns the index of the last rewind, or None.

    Earlier entries do not count.
    """
    for index in reversed(range(len(entries))):
        entry = entries[index][1]
        if isinstance(entry, AttemptOpened) and entry.rewinds:
            return index
    return None


def files_after(
    known: Sequence[FileHandle | None], *, of: Attempt | None, attempt: Attempt, written: Sequence[FileHandle | None]
) -> tuple[FileHandle | None, ...] | None:
    """Returns the operator state files of all subtasks after a batch; pure.

    Args:
        known: The files before the batch.
        of: The attempt that wrote them.
        attempt: The attempt that ran the batch.
        written: The files that the batch's subtasks wrote, by index.

    Returns:
        The files; None if the attempt has taken over only part of its predecessor's state.
    """
    if not any(file is not None for file in written):
        return tuple(known)
    if of == attempt and len(known) == len(written):
        return tuple(new or old for new, old in zip(written, known, strict=True))
    if any(file is not None for file in known) and None in written:
        return None
    return tuple(written)


class _History:
    """The history, folded entry by entry."""

    def __init__(self, manifest: Manifest | None, *, own: bool) -> None:
        self._manifest = manifest
        # Batches of another job's history have the same numbers, but other output than this job's batches.
        self._is_own = own and manifest is not None and isinstance(manifest.forked_from, msgspec.UnsetType)
        self._attempt = manifest.attempt if manifest is not None and own else Attempt(0)
        self._max_parallelism = manifest.max_parallelism if manifest is not None else None
        self._hash_id = manifest.hash_id if manifest is not None else None
        self._declarations: dict[OperatorUid, OperatorDeclaration] = {}
        self._batch_id = manifest.batch_id if manifest is not None else NO_BATCH
        # A manifest is taken between two batches: the outputs that it names are published, perhaps by another job.
        self._sinks: dict[str, str] = {}
        self._time = manifest.time if manifest is not None and isinstance(manifest.time, JobTime) else JobTime()
        self._counters = NOTHING_COUNTED
        if manifest is not None and own and isinstance(manifest.counters, JobCounters):
            self._counters = manifest.counters
        self._ranges = manifest.key_group_ranges if manifest is not None and own else None
        self._rewinds: tuple[Rewind, ...] = ()
        if manifest is not None and own and not isinstance(manifest.rewinds, msgspec.UnsetType):
            self._rewinds = manifest.rewinds
        self._planned: BatchPlanned | None = None
        self._positions: dict[str, str] = {}
        self._replaces_positions = False
        self._changelogs: dict[OperatorUid, list[ChangelogHandle]] = {}
        self._bases = {operator.uid: operator for operator in manifest.operators} if manifest is not None else {}
        writer = manifest.attempt if manifest is not None and own else None
        self._operator_state: dict[OperatorUid, tuple[Attempt | None, tuple[FileHandle | None, ...]]] = {
            each.uid: (writer, tuple(subtask.operator_state_file for subtask in each.subtasks))
            for each in self._bases.values()
        }

    def open(self, entry: AttemptOpened, *, first: bool) -> None:
        if entry.attempt <= self._attempt:
            raise HistoryError(f"attempt {entry.attempt} was opened after attempt {self._attempt}")
        base = self._manifest.path if self._manifest is not None else None
        if (entry.rewinds or first) and entry.restored_from != base:
            raise BaseDisownedError(
                f"the job's history continues from {entry.restored_from or 'nothing'}, not from {base or 'nothing'}"
            )
        for fixed, opened in ((self._max_parallelism, entry.max_parallelism), (self._hash_id, entry.hash_id)):
            if fixed is not None and fixed != opened:
                raise HistoryError(f"attempt {entry.attempt} has {opened} where the history has {fixed}")
        self._attempt, self._max_parallelism, self._hash_id = entry.attempt, entry.max_parallelism, entry.hash_id
        self._ranges = _ranges_of(entry)
        if isinstance(entry.counters, JobCounters):
            self._counters = self._counters.at_least(entry.counters)
        if entry.rewinds:
            self._rewinds = (*self._rewinds, Rewind(entry.attempt, self._batch_id if self._is_own else NO_BATCH))
        for uid in entry.dropped_operators:
            self._drop(uid)
        if entry.resets_time:
            self._time = JobTime(time_batches=self._time.time_batches)
        self._declarations.update(entry.operators)
        if not isinstance(entry.positions, msgspec.UnsetType):
            self._positions, self._replaces_positions = dict(entry.positions), True

    def _drop(self, uid: OperatorUid) -> None:
        """Forgets an operator; a later operator with its uid starts empty."""
        for parts in (self._bases, self._changelogs, self._declarations, self._operator_state):
            parts.pop(uid, None)
        events = {each: times for each, times in self._time.event_times.items() if each != uid}
        self._time = msgspec.structs.replace(self._time, event_times=events)

    def plan(self, entry: BatchPlanned) -> None:
        self._check(entry)
        self._planned = entry
        self._positions.update(entry.positions)

    def commit(self, entry: BatchCommitted) -> None:
        self._check(entry)
        self._batch_id, self._planned, self._sinks = entry.batch_id, None, dict(entry.sinks)
        self._time = entry.time
        if isinstance(entry.counters, JobCounters):
            self._counters = entry.counters
        for uid, changelogs in entry.operators.items():
            self._changelogs.setdefault(uid, []).extend(changelog for changelog in changelogs if changelog is not None)
            self._commit_operator_state(uid, [each.operator_state if each else None for each in changelogs])

    def _commit_operator_state(self, uid: OperatorUid, written: Sequence[FileHandle | None]) -> None:
        writer, known = self._operator_state.get(uid, (None, ()))
        files = files_after(known, of=writer, attempt=self._attempt, written=written)
        if files is None:
            raise HistoryError(f"attempt {self._attempt} took over only part of the operator state of {uid!r}")
        self._operator_state[uid] = (self._attempt if any(written) else writer, files)

    def resume_point(self, next_position: int) -> ResumePoint:
        operators = {
            uid: replace(
                _operator_history(self._bases.get(uid), self._changelogs.get(uid, ()), self._declarations.get(uid)),
                operator_state=self._operator_state.get(uid, (None, ()))[1],
            )
            for uid in sorted({*self._bases, *self._changelogs, *self._declarations})
        }
        return ResumePoint(
            batch_id=self._batch_id,
            planned=self._planned,
            positions=self._positions,
            operators=operators,
            next_position=next_position,
            attempt=self._attempt,
            sinks=self._sinks,
            max_parallelism=self._max_parallelism,
            hash_id=self._hash_id,
            time=self._time,
            replaces_positions=self._replaces_positions,
            counters=self._counters,
            rewinds=self._rewinds,
            key_group_ranges=self._ranges,
        )

    def _check(self, entry: BatchPlanned | BatchCommitted) -> None:
        if entry.attempt != self._attempt:
            raise HistoryError(f"attempt {entry.attempt} wrote to the log while attempt {self._attempt} was open")
        if entry.batch_id != self._batch_id + 1:
            raise HistoryError(f"batch {entry.batch_id} follows batch {self._batch_id} in the log")


def _ranges_of(entry: AttemptOpened) -> KeyGroupRanges | None:
    """Returns the ranges of an attempt; None: they are impossible."""
    try:
        return entry.key_group_ranges
    except KeyGroupError:
        return None


def _operator_history(
    base: OperatorSnapshot | None, changelogs: Sequence[ChangelogHandle], declared: OperatorDeclaration | None
) -> OperatorHistory:
    snapshots = base.subtasks if base is not None else ()
    declaration = declared or (base.declaration if base is not None else None)
    schemas = [
        base.declaration.schema if base is not None else None,
        *(snapshot.schema for snapshot in snapshots),
        *(changelog.schema for changelog in changelogs),
        declaration.schema if declaration is not None else None,
    ]
    return OperatorHistory(snapshots, tuple(changelogs), declaration, merge_schemas(schemas))
