"""A recorded batch has a parallelism that its job can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import Attempt, JobId
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.documents.log_entries import AttemptOpened
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
