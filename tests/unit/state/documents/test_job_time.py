"""A job's time is that of the batch committed last; histories written before it was recorded have none."""

from __future__ import annotations

import msgspec

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, LogEntry
from keyscale.state.documents.manifest import Manifest, SnapshotKind, decode_manifest, encode_manifest
from keyscale.state.keys.hashing import HashId
from keyscale.state.log.resolution import resolve

JOB = JobId("job")
LATER = JobTime({OperatorUid("windows"): EventTime(100, 89)}, time_batches=3)


def manifest(time: JobTime | msgspec.UnsetType) -> Manifest:
    return Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(1),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(1),
        batch_id=BatchId(4),
        log_position=0,
        max_parallelism=128,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(),
        time=time,
    )


def opened(attempt: int, restored_from: str | None) -> AttemptOpened:
    return AttemptOpened(Attempt(attempt), 1, 128, HashId.SPARK, restored_from, 0, {})


def test_the_time_of_the_last_commit_counts() -> None:
    base = manifest(JobTime(time_batches=1))
    entries: list[LogEntry] = [
        opened(2, base.path),
        BatchCommitted(Attempt(2), BatchId(5), {}, {}, 0, time=JobTime(time_batches=2)),
        BatchCommitted(Attempt(2), BatchId(6), {}, {}, 0, time=LATER),
    ]
    for count, expected in ((1, base.time), (2, JobTime(time_batches=2)), (3, LATER)):
        assert resolve(base, list(enumerate(entries[:count], 1)), JOB).time == expected


def test_a_manifest_keeps_the_time_and_one_without_it_has_none() -> None:
    assert decode_manifest(encode_manifest(manifest(LATER)), "manifest").time == LATER
    without = decode_manifest(encode_manifest(manifest(msgspec.UNSET)), "manifest")
    assert resolve(without, [], JOB).time == JobTime()
    assert b'"time"' not in encode_manifest(without)


def test_a_log_entry_without_a_time_is_read_as_that_of_a_job_without_time() -> None:
    entry = BatchCommitted(Attempt(1), BatchId(0), {}, {}, 0, time=LATER)
    fields = msgspec.json.decode(msgspec.json.encode(entry))
    assert msgspec.json.decode(msgspec.json.encode(fields), type=LogEntry) == entry
    del fields["time"]
    assert msgspec.json.decode(msgspec.json.encode(fields), type=BatchCommitted).time == JobTime()
