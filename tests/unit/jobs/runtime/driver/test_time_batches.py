"""Spark continues where its own batches ended, however many batches of time alone were committed between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.jobs.runtime.driver.resume_plan import resume_positions
from keyscale.state.documents.job_time import JobTime
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.keys.hashing import HashId
from keyscale.state.log.resolution import HistoryError, resolve

JOB = JobId("job")
OPENED = AttemptOpened(Attempt(1), 1, 128, HashId.SPARK, None, 0, {})


def planned(batch_id: int, of_spark: int) -> BatchPlanned:
    offsets = f'v1\n{{"batchWatermarkMs":0}}\n{of_spark}'
    return BatchPlanned(Attempt(1), BatchId(batch_id), {f"offsets/{of_spark}": offsets})


def committed(batch_id: int, time_batches: int) -> BatchCommitted:
    return BatchCommitted(Attempt(1), BatchId(batch_id), {}, {}, 0, time=JobTime(time_batches=time_batches))


@given(st.lists(st.booleans(), max_size=8), st.booleans())
def test_the_positions_are_those_of_sparks_last_batches(time_alone: list[bool], is_planned: bool) -> None:
    entries: list[LogEntry] = [OPENED, planned(0, 0), committed(0, 0)]
    of_spark = 0
    for batch_id, alone in enumerate(time_alone, 1):
        of_spark += not alone
        if not alone:
            entries.append(planned(batch_id, of_spark))
        entries.append(committed(batch_id, batch_id - of_spark))
    if is_planned:
        entries.append(planned(len(time_alone) + 1, of_spark + 1))
    resume = resolve(None, list(enumerate(entries, 1)), JOB)
    assert (resume.batch_id, resume.planned is not None) == (len(time_alone), is_planned)
    positions = resume_positions({}, resume)
    assert f"commits/{of_spark}" in positions
    assert f"commits/{of_spark + 1}" not in positions
    assert f"offsets/{of_spark}" in positions
    assert (f"offsets/{of_spark + 1}" in positions) is is_planned


def test_a_batch_of_time_has_a_number_of_its_own_like_any_other() -> None:
    entries: list[LogEntry] = [OPENED, planned(0, 0), committed(0, 0), committed(0, 1)]
    with pytest.raises(HistoryError, match="batch 0 follows batch 0"):
        resolve(None, list(enumerate(entries, 1)), JOB)
