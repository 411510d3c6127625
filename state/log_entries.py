"""What is written to the commit log."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from state.changelog import ChangelogHandle
from state.hashing import HashId
from state.identifiers import Attempt, BatchId, OperatorUid
from state.job_time import JobTime
from state.manifest import OperatorFacts


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
        claims: `restored_from` belongs to the job from now on (claim mode CLAIM).
    """

    attempt: Attempt
    parallelism: int
    max_parallelism: int
    hash_id: HashId
    restored_from: str | None
    opened_at_ms: int
    operators: dict[OperatorUid, OperatorFacts]
    rewinds: bool = False
    claims: bool = False


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
        time: How far the job has come in time with this batch.
    """

    attempt: Attempt
    batch_id: BatchId
    operators: dict[OperatorUid, list[ChangelogHandle | None]]
    sinks: dict[str, str]
    committed_at_ms: int
    input_records: int = 0
    output_records: int = 0
    time: JobTime = JobTime()


LogEntry: TypeAlias = AttemptOpened | BatchPlanned | BatchCommitted
