"""The entries of the commit log."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from keyscale.identifiers import Attempt, BatchId, OperatorUid

from ..keys.hashing import HashId
from ..keys.key_group_ranges import KeyGroupRanges
from .changelog import ChangelogHandle
from .job_counters import JobCounters
from .job_time import JobTime
from .manifest import OperatorDeclaration
from .rewind import Rewind


class AttemptOpened(msgspec.Struct, frozen=True, tag="attempt_opened"):
    """The start of an attempt; older attempts cannot commit after it.

    Attributes:
        attempt: Its fencing number.
        parallelism: Number of subtasks of each operator.
        max_parallelism: Number of key groups.
        hash_id: How keys are hashed to key groups.
        restored_from: Path of the manifest that the attempt started from, or None.
        opened_at_ms: Milliseconds since the epoch.
        operators: Each operator's declaration, by uid.
        rewinds: The history continues from `restored_from`; batches committed after that manifest are disowned.
        claims: `restored_from` belongs to the job from now on (claim mode CLAIM).
        restore_id: The id of the restore that the attempt carries out, so that it happens once; None for a restore
            without an id.
        dropped_operators: Operators whose state ends here, because the program no longer has them.
        dropped_sources: Sources whose positions end here, because the program no longer has them.
        positions: With dropped sources: the source positions from here on, in place of all earlier positions.
        counters: The job's counters so far, including batches that the entry disowns; omitted by earlier versions.
        resets_time: Event time and processing time begin again here.
        output_history: With `rewinds`: the rewinds in the history of the output that the sinks keep when the attempt
            starts. A rewind to nothing keeps the output until its first batch. Omitted by earlier versions.
        key_group_starts: The first key group of each subtask; omitted where the key groups are divided by count, and
            by earlier versions.
    """

    attempt: Attempt
    parallelism: int
    max_parallelism: int
    hash_id: HashId
    restored_from: str | None
    opened_at_ms: int
    operators: dict[OperatorUid, OperatorDeclaration]
    rewinds: bool = False
    claims: bool = False
    restore_id: str | None = None
    dropped_operators: tuple[OperatorUid, ...] = ()
    dropped_sources: tuple[OperatorUid, ...] = ()
    positions: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    counters: JobCounters | msgspec.UnsetType = msgspec.UNSET
    resets_time: bool = False
    output_history: tuple[Rewind, ...] | msgspec.UnsetType = msgspec.UNSET
    key_group_starts: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def key_group_ranges(self) -> KeyGroupRanges:
        """The key group ranges of the attempt's subtasks."""
        if isinstance(self.key_group_starts, msgspec.UnsetType):
            return KeyGroupRanges.of_count(self.max_parallelism, self.parallelism)
        return KeyGroupRanges(self.max_parallelism, self.key_group_starts)


class BatchPlanned(msgspec.Struct, frozen=True, tag="batch_planned"):
    """The input of a batch, durable before the batch runs.

    A repeated run therefore reads the same input.

    Attributes:
        attempt: The attempt that planned it.
        batch_id: The batch.
        positions: New and changed files of Spark's checkpoint directory since the last plan, by relative path; of a
            source's compacted log only the additions.
    """

    attempt: Attempt
    batch_id: BatchId
    positions: dict[str, str]


class BatchCommitted(msgspec.Struct, frozen=True, tag="batch_committed"):
    """A committed batch: exactly the changelogs and outputs named here count.

    Attributes:
        attempt: The attempt that committed it.
        batch_id: The batch.
        operators: Each operator's changelogs, ordered by subtask; None for a subtask without changes.
        sinks: Per sink, the token that publishes its staged output.
        committed_at_ms: Milliseconds since the epoch.
        input_records: Records read.
        output_records: Records written.
        time: The job's time after this batch.
        counters: The job's counters after this batch; omitted by earlier versions.
    """

    attempt: Attempt
    batch_id: BatchId
    operators: dict[OperatorUid, list[ChangelogHandle | None]]
    sinks: dict[str, str]
    committed_at_ms: int
    input_records: int = 0
    output_records: int = 0
    time: JobTime = JobTime()
    counters: JobCounters | msgspec.UnsetType = msgspec.UNSET


LogEntry: TypeAlias = AttemptOpened | BatchPlanned | BatchCommitted
