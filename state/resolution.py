"""What the commit log means: where a job's history stands. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from state.errors import KeyscaleError
from state.identifiers import Attempt, BatchId, OperatorUid
from state.job_time import JobTime
from state.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from state.operator_files import files_after
from state.schema_merge import merge_schemas
from state.version import NO_BATCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state.changelog import ChangelogHandle
    from state.hashing import HashId
    from state.identifiers import JobId
    from state.manifest import FileHandle, Manifest, OperatorFacts, OperatorSnapshot, SnapshotHandle
    from state.schema import KeyedSchema


class HistoryError(KeyscaleError):
    """The commit log contradicts itself or the manifest that it was read for."""

    code = "STATE_HISTORY_INVALID"
    advice = "Do not restart the job; keep its log and report this with the driver's log."


class BaseDisownedError(KeyscaleError):
    """The history goes on from another manifest than the one given: the job was rewound or started from elsewhere."""

    code = "STATE_BASE_DISOWNED"
    domain = "user"
    advice = "Restore from the manifest named in the message, or rewind to the one you gave."


@dataclass(frozen=True, slots=True)
class OperatorHistory:
    """What an operator's state is put together from.

    Attributes:
        snapshots: The base, by the subtasks that took it; empty before any checkpoint.
        changelogs: What was committed after it, ordered by batch, then by subtask; possibly of several parallelisms.
        facts: What the operator declared last, or None if nobody ever declared it.
        schema: How the state's entries are to be read, put together from all of the above; None if there are none.
        operator_state: The newest operator state of every subtask of the attempt that wrote it last, by index.
    """

    snapshots: tuple[SnapshotHandle, ...] = ()
    changelogs: tuple[ChangelogHandle, ...] = ()
    facts: OperatorFacts | None = None
    schema: KeyedSchema | None = None
    operator_state: tuple[FileHandle | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a job's history stands.

    Attributes:
        batch_id: Committed last; -1 if none is.
        planned: The batch that was planned after it and must be run with exactly its positions, or None.
        positions: Source position files since the manifest's own (which come first), the planned batch's included.
        operators: By uid.
        next_position: Where the next log entry goes.
        attempt: The highest one that was opened; 0 if none was.
        sinks: Output tokens of the batch committed last, which must be published (again).
        max_parallelism: As fixed by the history; None before any.
        hash_id: As fixed by the history; None before any.
        time: How far the job has come in time.
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


def log_start(manifest: Manifest | None, job_id: JobId) -> int:
    """The position after which a job's log must be read to resume from a manifest: 0 for another job's savepoint."""
    return manifest.log_position if manifest is not None and manifest.job_id == job_id else 0


def resolve(manifest: Manifest | None, entries: Sequence[tuple[int, LogEntry]], job_id: JobId) -> ResumePoint:
    """Decide where a job's history stands. Pure.

    Args:
        manifest: The checkpoint or savepoint to start from, or None for a job without any.
        entries: The job's log after `log_start(manifest, job_id)`, complete, or from the last rewind on, as
            `CommitLog.history` returns it.
        job_id: Whose log it is.

    Raises:
        BaseDisownedError: The history does not go on from this manifest.
        HistoryError: The entries contradict each other or the manifest.
        StateSchemaMismatchError: The schemas that they name contradict each other.
    """
    start = log_start(manifest, job_id)
    history = _History(manifest, own=manifest is not None and manifest.job_id == job_id)
    rewind = last_rewind(entries)
    if rewind is not None:
        entries = entries[rewind:]
        start = entries[0][0] - 1  # what was before does not count
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
    """Index of the entry with which the job was last rewound, or None: nothing before it counts."""
    for index in reversed(range(len(entries))):
        entry = entries[index][1]
        if isinstance(entry, AttemptOpened) and entry.rewinds:
            return index
    return None


class _History:
    """The fold of `resolve`."""

    def __init__(self, manifest: Manifest | None, *, own: bool) -> None:
        self._manifest = manifest
        self._attempt = manifest.attempt if manifest is not None and own else Attempt(0)
        self._max_parallelism = manifest.max_parallelism if manifest is not None else None
        self._hash_id = manifest.hash_id if manifest is not None else None
        self._facts: dict[OperatorUid, OperatorFacts] = {}
        self._batch_id = manifest.batch_id if manifest is not None else NO_BATCH
        self._sinks = dict(manifest.sinks) if manifest is not None else {}
        self._time = manifest.time if manifest is not None and isinstance(manifest.time, JobTime) else JobTime()
        self._planned: BatchPlanned | None = None
        self._positions: dict[str, str] = {}
        self._changelogs: dict[OperatorUid, list[ChangelogHandle]] = {}
        operators = manifest.operators if manifest is not None else ()
        writer = manifest.attempt if manifest is not None and own else None
        self._operator_state: dict[OperatorUid, tuple[Attempt | None, tuple[FileHandle | None, ...]]] = {
            each.uid: (writer, tuple(subtask.operator_state_file for subtask in each.subtasks)) for each in operators
        }

    def open(self, entry: AttemptOpened, *, first: bool) -> None:
        if entry.attempt <= self._attempt:
            raise HistoryError(f"attempt {entry.attempt} was opened after attempt {self._attempt}")
        base = self._manifest.path if self._manifest is not None else None
        if (entry.rewinds or first) and entry.restored_from != base:
            raise BaseDisownedError(
                f"the job's history goes on from {entry.restored_from or 'nothing'}, not from {base or 'nothing'}"
            )
        for fixed, opened in ((self._max_parallelism, entry.max_parallelism), (self._hash_id, entry.hash_id)):
            if fixed is not None and fixed != opened:
                raise HistoryError(f"attempt {entry.attempt} has {opened} where the history has {fixed}")
        self._attempt, self._max_parallelism, self._hash_id = entry.attempt, entry.max_parallelism, entry.hash_id
        self._facts.update(entry.operators)

    def plan(self, entry: BatchPlanned) -> None:
        self._check(entry)
        self._planned = entry
        self._positions.update(entry.positions)

    def commit(self, entry: BatchCommitted) -> None:
        self._check(entry)
        self._batch_id, self._planned, self._sinks = entry.batch_id, None, dict(entry.sinks)
        self._time = entry.time
        for uid, changelogs in entry.operators.items():
            self._changelogs.setdefault(uid, []).extend(changelog for changelog in changelogs if changelog is not None)
            self._commit_operator_state(uid, [each.operator_state if each else None for each in changelogs])

    def _commit_operator_state(self, uid: OperatorUid, written: Sequence[FileHandle | None]) -> None:
        writer, known = self._operator_state.get(uid, (None, ()))
        files = files_after(known, of=writer, attempt=self._attempt, written=written)
        if files is None:
            raise HistoryError(f"attempt {self._attempt} took over a part of the operator state of {uid!r} only")
        self._operator_state[uid] = (self._attempt if any(written) else writer, files)

    def resume_point(self, next_position: int) -> ResumePoint:
        bases = {operator.uid: operator for operator in self._manifest.operators} if self._manifest is not None else {}
        operators = {
            uid: replace(
                _operator_history(bases.get(uid), self._changelogs.get(uid, ()), self._facts.get(uid)),
                operator_state=self._operator_state.get(uid, (None, ()))[1],
            )
            for uid in sorted({*bases, *self._changelogs, *self._facts})
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
        )

    def _check(self, entry: BatchPlanned | BatchCommitted) -> None:
        if entry.attempt != self._attempt:
            raise HistoryError(f"attempt {entry.attempt} wrote to the log while attempt {self._attempt} was open")
        if entry.batch_id != self._batch_id + 1:
            raise HistoryError(f"batch {entry.batch_id} follows batch {self._batch_id} in the log")


def _operator_history(
    base: OperatorSnapshot | None, changelogs: Sequence[ChangelogHandle], declared: OperatorFacts | None
) -> OperatorHistory:
    snapshots = base.subtasks if base is not None else ()
    facts = declared or (base.facts if base is not None else None)
    schemas = [
        base.facts.schema if base is not None else None,
        *(snapshot.schema for snapshot in snapshots),
        *(changelog.schema for changelog in changelogs),
        facts.schema if facts is not None else None,
    ]
    return OperatorHistory(snapshots, tuple(changelogs), facts, merge_schemas(schemas))
