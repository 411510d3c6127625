"""The parts of a batch add up to its time, and each moment counts for the part that used it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.batch.batch_parts import (
    BatchStart,
    Staging,
    parts_of_batch,
    running_ms,
    sink_times_ms,
)
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.metrics import BATCH_PARTS

UID, TABLE, FILES = OperatorUid("counts"), OperatorUid("table"), OperatorUid("files")
TIMES = st.floats(0, 1e6)
ACTIVITIES = ("input_ms", "open_ms", "process_ms", "output_ms", "store_ms", "finish_ms")


def report(began_at_ms: float = 0, subtask: int = 0, executor: str = "host", **times: float) -> TaskReport:
    return TaskReport("run", UID, SubtaskIndex(subtask), began_at_ms=began_at_ms, executor=executor, **times)


def reports() -> st.SearchStrategy[list[TaskReport]]:
    tasks: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {"began_at_ms": TIMES, "executor": st.sampled_from(["a", "b"]), **dict.fromkeys(ACTIVITIES, TIMES)}
    )
    return st.lists(tasks.map(lambda task: report(**task)), max_size=4)


@given(st.lists(TIMES, min_size=6, max_size=6), TIMES, reports(), st.floats(-1e6, 2e6))
def test_the_parts_of_any_batch_add_up_to_its_time(
    spans: list[float], sinks_ms: float, ran: list[TaskReport], found_ms: float
) -> None:
    began, received, planned, ran_ms, committed, published = (sum(spans[: at + 1]) for at in range(6))
    parts = parts_of_batch(
        BatchStart(began, found_ms, received, planned),
        ran_ms=ran_ms,
        committed_ms=committed,
        published_ms=published,
        sinks_ms=sinks_ms,
        reports=ran,
    )
    assert sum(parts.values()) == int(published - began)
    assert min(parts.values()) >= 0
    assert set(parts) == {part.name for part in BATCH_PARTS}


def test_tasks_are_divided_among_their_activities_and_spark_has_the_rest() -> None:
    tasks = [report(process_ms=300, input_ms=100), report(subtask=1, process_ms=100, finish_ms=50, output_ms=50)]
    start = BatchStart(0, found_ms=1000, received_ms=1500, planned_ms=1520)
    parts = parts_of_batch(start, ran_ms=2520, committed_ms=2530, published_ms=2600, sinks_ms=200, reports=tasks)
    assert parts == {
        "wait_ms": 1000,
        "plan_ms": 20,
        "function_ms": 266,
        "state_ms": 33,
        "store_ms": 0,
        "sink_ms": 233,
        "append_ms": 10,
        "publish_ms": 70,
        "spark_ms": 968,
    }


@pytest.mark.parametrize(
    ("tasks", "expected_ms"),
    [
        ([], 0),
        ([report(0, process_ms=10), report(5, process_ms=10)], 15),
        ([report(0, process_ms=10), report(30, process_ms=10)], 20),
        ([report(0, process_ms=50), report(5, process_ms=10)], 50),
        ([report(0, process_ms=10), report(9_999, executor="other", process_ms=30)], 30),
    ],
)
def test_tasks_at_the_same_time_count_once_and_hosts_are_not_compared(
    tasks: list[TaskReport], expected_ms: float
) -> None:
    assert running_ms(tasks) == expected_ms


def test_a_sink_took_the_time_after_the_last_of_its_tasks() -> None:
    tasks = [report(100, process_ms=50), report(120, process_ms=100)]
    times = sink_times_ms([Staging(TABLE, 90, 300), Staging(FILES, 300, 340)], tasks)
    assert times == {TABLE: 80, FILES: 40}, "the rows of the second sink were there already"
