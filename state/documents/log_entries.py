"""The entries of the commit log."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ..identifiers import Attempt, BatchId, OperatorUid
from ..keys.hashing import HashId
from .changelog import ChangelogHandle
from .job_counters import JobCounters
from .job_time import JobTime
from .manifest import OperatorDeclaration


class AttemptOpened(msgspec.Struct, frozen=True, tag="attempt_opened"):
    """An attempt has begun; from here on no older one can commit.

    Attributes:
        attempt: Its fencing number.
        parallelism: Number of subtasks of each operator.
        max_parallelism: Number of key groups.
        hash_id: How keys are hashed to key groups.
        restored_from: Path of the manifest that it started from, or None.
        opened_at_ms: Milliseconds since the epoch.
        operators: What each operator declares, by uid.
        rewinds: The history continues from `restored_from` itself; batches committed after that are disowned.
        claims: `restored_from` belongs to the job from now on (claim mode CLAIM).
        restore_id: The wish by which it rewinds, so that it is carried out once; None: it had no name.
        dropped_operators: Operators whose state is gone from here on, as the program no longer has them.
        dropped_sources: Sources whose positions are gone from here on, likewise.
        positions: With dropped sources: the source positions from here on, in place of all earlier ones.
        counters: The job's counters until here, also of batches that it disowns; left out in what earlier versions have
            written.
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


class BatchPlanned(msgspec.Struct, frozen=True, tag="batch_planned"):
    """The input of a batch, durable before the batch runs, so that a repeated run reads the same.

    Attributes:
        attempt: The attempt that planned it.
        batch_id: The batch.
        positions: New and changed files of Spark's checkpoint directory since the last plan, by relative path; of a
            source's compacted log only what it adds.
    """

    attempt: Attempt
    batch_id: BatchId
    positions: dict[str, str]


class BatchCommitted(msgspec.Struct, frozen=True, tag="batch_committed"):
    """A batch is committed: exactly the changelogs and sink outputs named here count.

    Attributes:
        attempt: The attempt that committed it.
        batch_id: The batch.
        operators: Each operator's changelogs, ordered by subtask; None for a subtask that changed nothing.
        sinks: Per sink, the token that publishes its staged output.
        committed_at_ms: Milliseconds since the epoch.
        input_records: Records read.
        output_records: Records written.
        time: The job's time after this batch.
        counters: The job's counters after this batch; left out in what earlier versions have written.
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
