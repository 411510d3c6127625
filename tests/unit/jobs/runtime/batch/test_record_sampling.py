"""An order of a sample reaches the tasks of its operator, and their records come back."""

from __future__ import annotations

import pytest

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.batch.record_sampling import RecordSampling
from keyscale.jobs.runtime.errors import NoBatchYetError, UnknownOperatorError
from keyscale.jobs.runtime.executor.task_reports import TaskReport

COUNT, OTHER = OperatorUid("count"), OperatorUid("other")


@pytest.fixture
def sampling() -> RecordSampling:
    sampling = RecordSampling()
    sampling.serve([COUNT, OTHER])
    return sampling


def report(sample_id: str = "d1", uid: OperatorUid = COUNT, **sample: list[str]) -> TaskReport:
    return TaskReport("run", uid, SubtaskIndex(0), sample_id=sample_id, sample=sample)


def test_the_records_of_all_subtasks_are_shown_up_to_the_limit(sampling: RecordSampling) -> None:
    reads = sampling.begin("d1", "count", rows=3, with_values=True, seconds=10)
    order = sampling.order_of(COUNT)
    assert order is not None
    assert (order.id, order.rows, order.key) == ("d1", 3, None)
    assert sampling.order_of(OTHER) is None
    sampling.collect([report()])  # a batch without records
    assert sampling.order_of(COUNT) is order
    sampling.collect([report(input=["a", "b"], output=["A"]), report("d0", input=["x"]), report(input=["c", "d"])])
    assert sampling.order_of(COUNT) is None, "later batches are not sampled"
    assert {side: read() for side, read in reads.items()} == {"input": "a\nb\nc", "output": "A"}


def test_values_are_hidden_under_a_new_key_for_each_sample(sampling: RecordSampling) -> None:
    keys = set()
    for name in ("d1", "d2"):
        sampling.begin(name, "count", rows=1, with_values=False, seconds=10)
        order = sampling.order_of(COUNT)
        assert order is not None
        keys.add(order.key)
    assert len(keys) == 2
    assert None not in keys


def test_a_sample_without_records_ends_with_its_time(sampling: RecordSampling) -> None:
    reads = sampling.begin("d1", "count", rows=1, with_values=True, seconds=0.01)
    assert reads["input"]() == "(no batch with records of count within 0.01 s)"
    assert sampling.order_of(COUNT) is None, "later batches are not sampled"


def test_an_unknown_operator_is_refused_with_the_known_ones(sampling: RecordSampling) -> None:
    with pytest.raises(UnknownOperatorError, match="no operator sum; it has count, other"):
        sampling.begin("d1", "sum", rows=1, with_values=True, seconds=1)


def test_a_sample_of_a_driver_that_has_just_started_is_to_be_requested_again() -> None:
    with pytest.raises(NoBatchYetError) as refused:
        RecordSampling().begin("d1", "sum", rows=1, with_values=True, seconds=1)
    assert "request it again" in refused.value.advice


def test_a_sample_that_ends_with_its_time_leaves_the_newer_one_in_force(sampling: RecordSampling) -> None:
    old = sampling.begin("d1", "count", rows=1, with_values=True, seconds=0.01)
    new = sampling.begin("d2", "other", rows=1, with_values=True, seconds=10)
    assert old["input"]() == "(no batch with records of count within 0.01 s)"
    sampling.collect([report("d2", OTHER, input=["x"])])
    assert {side: read() for side, read in new.items()} == {"input": "x", "output": ""}
