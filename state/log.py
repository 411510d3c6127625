"""The commit log: the single truth of what a job has committed.

Numbered entries, each created conditionally, strictly one after another. A driver that opens an attempt appends at the
next position; from then on an older driver's next append finds its position taken, and it ends. So no older attempt can
ever commit, with nothing but conditional creates. What the entries mean is decided by `resolve`.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from state.changelog import ChangelogHandle
from state.errors import KeyscaleError
from state.hashing import HashId
from state.identifiers import Attempt, BatchId, OperatorUid
from state.manifest import OperatorFacts
from state.objects import ObjectExistsError, ObjectNotFoundError, StoreUnavailableError
from state.schema_merge import merge_schemas
from state.sealed import DocumentCorruptError, seal, unseal
from state.syncpoint import reach
from state.version import NO_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state.identifiers import JobId
    from state.layout import Layout
    from state.manifest import Manifest, OperatorSnapshot, SnapshotHandle
    from state.objects import ObjectStore
    from state.schema import KeyedSchema

KIND = "log-entry"
FORMAT_VERSION = 1
_APPEND_TRIES = 4
_READERS = 8


class FencedError(KeyscaleError):
    """Another attempt has taken over: this one may not commit anything any more."""

    code = "STATE_FENCED"
    advice = "Nothing to do: the job goes on in its newer attempt."


class LogGapError(KeyscaleError):
    """An entry of the commit log is missing."""

    code = "STATE_LOG_GAP"
    domain = "external"
    advice = "Restore from a newer checkpoint: the log before it was cleaned up or lost."


class AttemptOpened(msgspec.Struct, frozen=True, tag="attempt_opened"):
    """An attempt has begun; no older one commits after this.

    Attributes:
        attempt: Its fencing number.
        parallelism: Subtasks of each operator.
        max_parallelism: Key groups.
        hash_id: How keys are hashed to them.
        restored_from: Path of the manifest that it started from, or None.
        opened_at_ms: Milliseconds since the epoch.
        operators: What each operator declared.
        rewinds: The history goes on from `restored_from` itself; what was committed after that is disowned.
    """

    attempt: Attempt
    parallelism: int
    max_parallelism: int
    hash_id: HashId
    restored_from: str | None
    opened_at_ms: int
    operators: dict[OperatorUid, OperatorFacts]
    rewinds: bool = False


class BatchPlanned(msgspec.Struct, frozen=True, tag="batch_planned"):
    """What a batch will read, durable before it runs: a re-run reads the same.

    Attributes:
        attempt: Who planned it.
        batch_id: The batch.
        positions: New and changed files of Spark's checkpoint directory since the last plan, by relative path.
    """

    attempt: Attempt
    batch_id: BatchId
    positions: dict[str, str]


class BatchCommitted(msgspec.Struct, frozen=True, tag="batch_committed"):
    """A batch has happened: these changelogs and sink outputs exist, all others do not.

    Attributes:
        attempt: Who committed it.
        batch_id: The batch.
        operators: Per operator the changelog of each subtask, by index; None where nothing changed.
        sinks: Per sink what publishes its staged output.
        committed_at_ms: Milliseconds since the epoch.
        input_records: Records that it read.
        output_records: Records that it wrote.
    """

    attempt: Attempt
    batch_id: BatchId
    operators: dict[OperatorUid, list[ChangelogHandle | None]]
    sinks: dict[str, str]
    committed_at_ms: int
    input_records: int = 0
    output_records: int = 0


LogEntry: TypeAlias = AttemptOpened | BatchPlanned | BatchCommitted


class _Record(msgspec.Struct, frozen=True):
    position: int
    nonce: str
    entry: LogEntry


class CommitLog:
    """Reads and appends one job's log. Entries are numbered from 1."""

    def __init__(self, store: ObjectStore, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._nonce = uuid.uuid4().hex  # tells this driver's entries from those of any other one

    def read(self, after: int = 0) -> list[tuple[int, LogEntry]]:
        """All entries after a position, in order, with their positions.

        Raises:
            LogGapError: An entry between the position and the log's end is missing.
            DocumentCorruptError: One is damaged.
        """
        positions = list(self._positions(after))
        if positions != list(range(after + 1, after + 1 + len(positions))):
            raise LogGapError(f"the commit log of {self._layout.job_id} has no complete history after position {after}")
        with ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader") as readers:
            return list(zip(positions, readers.map(self._entry, positions), strict=True))

    def read_each(self, positions: Sequence[int]) -> dict[int, LogEntry]:
        """The entries at these positions, with holes where they are gone meanwhile.

        Raises:
            DocumentCorruptError: One is damaged.
        """
        with ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader") as readers:
            return {
                position: entry
                for position, entry in zip(positions, readers.map(self._entry_or_none, positions), strict=True)
                if entry is not None
            }

    def append(self, position: int, entry: LogEntry) -> int:
        """Append an entry at exactly this position; returns the next one.

        After a lost response the position is read back and compared, with a nonce: nothing is guessed.

        Raises:
            FencedError: Another entry holds the position, or the log goes on after it.
            StoreUnavailableError: The store is away; it is unknown whether the entry is there. The same entry may be
                appended again at the same position, through the same CommitLog.
        """
        data = seal(KIND, FORMAT_VERSION, _Record(position, self._nonce, entry))
        path = self._layout.log_entry(position)
        reach("log.appending")
        for left in reversed(range(_APPEND_TRIES)):
            try:
                self._store.create(path, data)
            except ObjectExistsError:
                if self._store.get(path) != data:
                    raise FencedError(f"position {position} of the commit log is taken by another attempt") from None
            except StoreUnavailableError:
                if not left:
                    raise
                continue
            break
        reach("log.appended")
        if isinstance(entry, AttemptOpened):
            self._check_end(position)
        return position + 1

    def _check_end(self, position: int) -> None:
        """A process that slept for days may have filled a hole that the clean-up of old entries left."""
        if any(True for _ in self._positions(position)):
            raise FencedError(f"the commit log goes on after position {position}: another attempt is at work")

    def _positions(self, after: int) -> Iterator[int]:
        for info in self._store.list(self._layout.log, start_after=self._layout.log_entry(after)):
            position = self._layout.log_position(info.path)
            if position is not None:
                yield position

    def _entry(self, position: int) -> LogEntry:
        return self._record(position).entry

    def _entry_or_none(self, position: int) -> LogEntry | None:
        try:
            return self._entry(position)
        except LogGapError:
            return None

    def _record(self, position: int) -> _Record:
        path = self._layout.log_entry(position)
        try:
            record = unseal(self._store.get(path), KIND, FORMAT_VERSION, _Record, path)
        except ObjectNotFoundError as error:
            raise LogGapError(f"{path} was listed and is gone") from error
        if record.position != position:
            raise DocumentCorruptError(f"{path} holds the entry of position {record.position}")
        return record


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
    """

    snapshots: tuple[SnapshotHandle, ...] = ()
    changelogs: tuple[ChangelogHandle, ...] = ()
    facts: OperatorFacts | None = None
    schema: KeyedSchema | None = None


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


def log_start(manifest: Manifest | None, job_id: JobId) -> int:
    """The position after which a job's log must be read to resume from a manifest: 0 for another job's savepoint."""
    return manifest.log_position if manifest is not None and manifest.job_id == job_id else 0


def resolve(manifest: Manifest | None, entries: Sequence[tuple[int, LogEntry]], job_id: JobId) -> ResumePoint:
    """Decide where a job's history stands. Pure.

    Args:
        manifest: The checkpoint or savepoint to start from, or None for a job without any.
        entries: The job's log after `log_start(manifest, job_id)`, complete, as `CommitLog.read` returns it.
        job_id: Whose log it is.

    Raises:
        BaseDisownedError: The history does not go on from this manifest.
        HistoryError: The entries contradict each other or the manifest.
        StateSchemaMismatchError: The schemas that they name contradict each other.
    """
    start = log_start(manifest, job_id)
    history = _History(manifest, own=manifest is not None and manifest.job_id == job_id)
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


class _History:
    """The fold of `resolve`."""

    def __init__(self, manifest: Manifest | None, *, own: bool) -> None:
        self._manifest = manifest
        self._attempt = manifest.attempt if manifest is not None and own else Attempt(0)
        self._max_parallelism = manifest.max_parallelism if manifest is not None else None
        self._hash_id = manifest.hash_id if manifest is not None else None
        self._facts: dict[OperatorUid, OperatorFacts] = {}
        self._rewind()

    def _rewind(self) -> None:
        manifest = self._manifest
        self._batch_id = manifest.batch_id if manifest is not None else NO_BATCH
        self._sinks = dict(manifest.sinks) if manifest is not None else {}
        self._planned: BatchPlanned | None = None
        self._positions: dict[str, str] = {}
        self._changelogs: dict[OperatorUid, list[ChangelogHandle]] = {}

    def open(self, entry: AttemptOpened, *, first: bool) -> None:
        if entry.attempt <= self._attempt:
            raise HistoryError(f"attempt {entry.attempt} was opened after attempt {self._attempt}")
        base = self._manifest.path if self._manifest is not None else None
        if (entry.rewinds or first) and entry.restored_from != base:
            raise BaseDisownedError(
                f"the job's history goes on from {entry.restored_from or 'nothing'}, not from {base or 'nothing'}"
            )
        for fixed, opened in ((self._max_parallelism, entry.max_parallelism), (self._hash_id, entry.hash_id)):
            if fixed is not None and fixed != opened and not entry.rewinds:
                raise HistoryError(f"attempt {entry.attempt} has {opened} where the history has {fixed}")
        self._attempt, self._max_parallelism, self._hash_id = entry.attempt, entry.max_parallelism, entry.hash_id
        self._facts.update(entry.operators)
        if entry.rewinds:
            self._rewind()

    def plan(self, entry: BatchPlanned) -> None:
        self._check(entry)
        self._planned = entry
        self._positions.update(entry.positions)

    def commit(self, entry: BatchCommitted) -> None:
        self._check(entry)
        self._batch_id, self._planned, self._sinks = entry.batch_id, None, dict(entry.sinks)
        for uid, changelogs in entry.operators.items():
            self._changelogs.setdefault(uid, []).extend(changelog for changelog in changelogs if changelog is not None)

    def resume_point(self, next_position: int) -> ResumePoint:
        bases = {operator.uid: operator for operator in self._manifest.operators} if self._manifest is not None else {}
        operators = {
            uid: _operator_history(bases.get(uid), self._changelogs.get(uid, ()), self._facts.get(uid))
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
