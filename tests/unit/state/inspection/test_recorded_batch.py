"""A recorded batch has the attempt that ran it, and a parallelism that its job can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted
from keyscale.state.documents.manifest import Manifest, SnapshotKind, write_manifest
from keyscale.state.inspection.recorded_batch import RecordedBatch
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path

JOB = JobId("job")


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(17, 16), (1_000_000, 1_000_000), (0, 16)])
def test_a_parallelism_that_the_job_cannot_have_is_refused(
    tmp_path: Path, parallelism: int, max_parallelism: int
) -> None:
    store = LocalObjectStore(tmp_path)
    entry = AttemptOpened(Attempt(1), parallelism, max_parallelism, HashId.SPARK, None, 1, {})
    CommitLog(store, Layout(JOB)).append(1, entry)
    with pytest.raises(DocumentCorruptError, match=r"the log of job 'job' is damaged: .*parallelism"):
        RecordedBatch.of_job(store, JOB)


def test_the_first_batch_of_each_attempt_is_its_first_whatever_follows(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, Layout(JOB))
    position = 1
    for attempt in (Attempt(1), Attempt(2)):
        position = log.append(position, AttemptOpened(attempt, attempt, 16, HashId.SPARK, None, 1, {}))
        for batch_id in (2 * attempt - 2, 2 * attempt - 1):
            position = log.append(position, BatchCommitted(attempt, BatchId(batch_id), {}, {}, 0))
    batches = [RecordedBatch.of_job(store, JOB, batch_id) for batch_id in range(5)]
    assert [(each.attempt, each.parallelism, each.is_first) for each in batches] == [
        (1, 1, True),
        (1, 1, False),
        (2, 2, True),
        (2, 2, False),
        (2, 2, False),
    ]
    checkpoint = Manifest(
        JOB, CheckpointId(1), SnapshotKind.CHECKPOINT, Attempt(2), BatchId(3), position - 1, 16, HashId.SPARK, 0, ()
    )
    write_manifest(store, checkpoint)
    assert not RecordedBatch.of_job(store, JOB).is_first, "the attempt that took the checkpoint goes on"
    log.append(position, AttemptOpened(Attempt(3), 1, 16, HashId.SPARK, checkpoint.path, 1, {}))
    assert RecordedBatch.of_job(store, JOB).is_first
