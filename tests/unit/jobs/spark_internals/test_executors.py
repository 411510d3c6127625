"""The executors, their times, slots and threads are found in what Spark shows, or are unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.jobs.spark_internals.executor_times import ExecutorTimes, executor_times
from keyscale.jobs.spark_internals.jvm_heap import jvm_heap_bytes
from keyscale.jobs.spark_internals.live_executors import (
    LiveExecutor,
    executor_threads,
    executors_elsewhere,
    live_executors,
)
from keyscale.jobs.spark_internals.task_slots import parallelism_of_slots, split_sources_for
from tests.support.spark.played_jvm import answering, sequence


def executor(name: str, address: str, *, is_alive: bool = True, **logs: str) -> Any:
    found = answering(
        id=name, hostPort=address, totalDuration=1000 * len(name), totalGCTime=len(name), isActive=is_alive
    )
    found.executorLogs = lambda: SimpleNamespace(contains=logs.__contains__, apply=logs.__getitem__)
    return found


EXECUTORS = (
    executor("driver", "here:1"),
    executor("22", "fd00::1:7078", stderr="http://e", stdout="http://o", gc="http://g"),
    executor("1", "here:2", stderr="http://e1"),
    executor("333", "there:1", is_alive=False),
)


def session(**answers: Any) -> Any:
    def executors(active_only: bool) -> Any:
        return sequence(*(each for each in EXECUTORS if each.isActive() or not active_only))

    store = SimpleNamespace(executorList=executors)
    context = answering(statusStore=store)
    vars(context).update(answers)
    master = answers.get("master", "spark://x")
    settings: dict[str, Any] = {}
    return SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=answering(sc=context), master=master),
        conf=SimpleNamespace(set=settings.__setitem__, settings=settings),
    )


def test_the_times_of_lost_executors_count_too() -> None:
    assert executor_times(session()) == ExecutorTimes(tasks_ms=12_000, collections_ms=12)
    assert executor_times(cast("Any", SimpleNamespace())) is None


@pytest.mark.parametrize(
    ("before", "after", "ratio"),
    [((100, 10), (300, 60), 0.25), ((100, 10), (100, 10), None), ((100, 10), (150, 90), 1.0), ((0, 0), (9, 0), 0.0)],
)
def test_the_share_of_collections_is_of_the_time_since_the_last_look(
    before: tuple[int, int], after: tuple[int, int], ratio: float | None
) -> None:
    assert ExecutorTimes(*after).collection_ratio(ExecutorTimes(*before)) == ratio


def test_live_executors_have_their_logs_and_those_on_other_hosts_are_known() -> None:
    found = live_executors(session())
    assert found == [
        LiveExecutor("1", "here:2", {"stderr": "http://e1"}),
        LiveExecutor("22", "fd00::1:7078", {"stdout": "http://o", "stderr": "http://e"}),
        LiveExecutor("driver", "here:1", {}),
    ]
    assert [each.host for each in found] == ["here", "fd00::1", "here"]
    assert executors_elsewhere(found) == [found[1]]
    assert executors_elsewhere(found[:2]) == found[:2], "without the driver, each counts"


def test_the_threads_of_an_executor_that_has_ended_are_empty() -> None:
    dumps = {
        "1": answering(isEmpty=False, get=[answering(toString="a\n"), answering(toString="b\n")]),
        "2": answering(isEmpty=True),
    }
    spark = session(getExecutorThreadDump=dumps.__getitem__)
    assert [executor_threads(spark, each) for each in dumps] == ["a\nb\n", ""]


@pytest.mark.parametrize(
    ("master", "slots", "parallelism", "splits"),
    [("local[4]", 4, 3, 6), ("local[1]", 1, 1, 6), ("spark://x", 4, 4, None), ("local[*]", None, None, 6)],
)
def test_a_slot_of_a_local_master_is_left_for_the_source(
    master: str, slots: int | None, parallelism: int | None, splits: int | None
) -> None:
    known = {} if slots is None else {"maxNumConcurrentTasks": {"default": slots}.__getitem__}
    profile = answering(defaultResourceProfile="default")
    spark = session(master=master, resourceProfileManager=lambda: profile, **known)
    assert parallelism_of_slots(spark) == parallelism
    split_sources_for(spark, 5)
    assert spark.conf.settings == ({} if splits is None else {"spark.sql.leafNodeDefaultParallelism": splits})


def test_the_used_heap_is_the_total_without_what_is_free() -> None:
    runtime = answering(totalMemory=500, freeMemory=120)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Runtime=answering(getRuntime=runtime))))
    assert jvm_heap_bytes(cast("Any", SimpleNamespace(_jvm=jvm))) == 380
    assert jvm_heap_bytes(cast("Any", SimpleNamespace(_jvm=None))) is None
