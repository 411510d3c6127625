"""A batch in a job's history, with the state before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.identifiers import BatchId

from ..documents.checked_document import DocumentCorruptError
from ..documents.log_entries import AttemptOpened, BatchCommitted
from ..errors import KeyGroupError
from ..keys.key_group_ranges import KeyGroupRanges
from ..keys.key_groups import check_parallelism
from ..layout import Layout
from ..log.commit_log import CommitLog, LogGapError
from ..log.recovery import NothingUsableError, recover
from ..log.resolution import BaseDisownedError, last_rewind, resolve
from .state_point import BatchNotStoredError, StatePoint, base_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.identifiers import Attempt, JobId

    from ..documents.log_entries import LogEntry
    from ..documents.manifest import Manifest
    from ..log.recovery import Recovery
    from ..objects.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A batch that the log records, or the batch that comes next.

    Attributes:
        before: The state before the batch. Its resume point has the batch's plan; a batch without a plan is of time
            alone.
        attempt: The attempt that committed the batch, or that would run it now.
        parallelism: The attempt's number of subtasks.
        is_first: Whether the batch is the attempt's first, in which subtasks take over operator state.
        committed: The commit; None: the batch is not committed.
    """

    before: StatePoint
    attempt: Attempt
    parallelism: int
    is_first: bool
    committed: BatchCommitted | None

    @property
    def ranges(self) -> KeyGroupRanges:
        """The key groups of each of the attempt's subtasks."""
        known = self.before.resume.key_group_ranges
        if known is not None and len(known) == self.parallelism:
            return known
        return KeyGroupRanges.of_count(self.before.max_parallelism, self.parallelism)

    @property
    def batch_id(self) -> BatchId:
        """The number of the batch."""
        return BatchId(self.before.batch_id + 1)

    @classmethod
    def of_job(cls, store: ObjectStore, job_id: JobId, batch_id: int | None = None) -> RecordedBatch:
        """Returns a batch of a job.

        By default this is the batch after the last commit.

        Raises:
            DocumentCorruptError: The attempt has a parallelism that the job cannot have.
            BatchNotStoredError: The job has not run so far, or the batch or the state before it was cleaned up; the
                message names the oldest batch whose state is stored.
            KeyscaleError: The store does not answer, or its content cannot be read.
        """
        recovery = recover(store, job_id, None)
        following = recovery.resume.batch_id + 1
        wanted = following if batch_id is None else batch_id
        if recovery.resume.max_parallelism is None:
            raise BatchNotStoredError("the job has never run, so it has no batches")
        if not 0 <= wanted <= following:
            raise BatchNotStoredError(f"batch {wanted} does not exist; the batch after the last commit is {following}")
        try:
            base = base_before(store, job_id, recovery, BatchId(wanted - 1))
            entries = CommitLog(store, Layout(job_id)).history(base)
            entries = entries[last_rewind(entries) or 0 :]
            commits = (at for at, (_, entry) in enumerate(entries) if _is_commit(entry, wanted))
            end = next(commits, len(entries))
            resume = resolve(base, entries[:end], job_id)
        except (BaseDisownedError, LogGapError):
            raise _cleaned_up(store, job_id, recovery, wanted) from None
        if resume.batch_id != wanted - 1:
            raise _cleaned_up(store, job_id, recovery, wanted)
        parallelism = _parallelism(base, entries[:end], resume.attempt)
        try:
            check_parallelism(recovery.resume.max_parallelism, parallelism)
        except KeyGroupError as error:
            raise DocumentCorruptError(f"the log of job {job_id!r} is damaged: {error}") from error
        committed = entries[end][1] if end < len(entries) else None
        assert committed is None or isinstance(committed, BatchCommitted)  # noqa: S101 - see `commits`
        return cls(
            StatePoint(store, base, resume),
            resume.attempt,
            parallelism,
            not _has_commit(base, entries[:end], resume.attempt),
            committed,
        )


def _is_commit(entry: LogEntry, batch_id: int) -> bool:
    return isinstance(entry, BatchCommitted) and entry.batch_id == batch_id


def _parallelism(base: Manifest | None, entries: Sequence[tuple[int, LogEntry]], attempt: Attempt) -> int:
    """Returns the parallelism of the last attempt."""
    for _, entry in reversed(entries):
        if isinstance(entry, AttemptOpened) and entry.attempt == attempt:
            return entry.parallelism
    return max((each.parallelism for each in base.operators), default=1) if base is not None else 1


def _has_commit(base: Manifest | None, entries: Sequence[tuple[int, LogEntry]], attempt: Attempt) -> bool:
    """Returns whether the last attempt has committed a batch before."""
    opened = any(isinstance(entry, AttemptOpened) and entry.attempt == attempt for _, entry in entries)
    if not opened and base is not None and base.attempt == attempt:
        return True
    return any(isinstance(entry, BatchCommitted) and entry.attempt == attempt for _, entry in entries)


def _cleaned_up(store: ObjectStore, job_id: JobId, recovery: Recovery, batch_id: int) -> BatchNotStoredError:
    oldest = _oldest_recorded(store, job_id, recovery)
    return BatchNotStoredError(
        f"the state before batch {batch_id} was cleaned up; the oldest batch with a stored state is {oldest}"
    )


def _oldest_recorded(store: ObjectStore, job_id: JobId, recovery: Recovery) -> int:
    """Returns the oldest batch with a stored state before it."""
    newer: set[str] = set()
    while (base := recovery.base.manifest) is not None:
        newer.add(base.path)
        oldest = base.batch_id + 1
        try:
            recovery = recover(store, job_id, None, excluded=newer)
        except (BaseDisownedError, LogGapError, NothingUsableError):
            return oldest
    return 0
