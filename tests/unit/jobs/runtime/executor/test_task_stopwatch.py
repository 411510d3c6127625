"""Each moment of a task counts as one activity, whoever waits for whom."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from keyscale.jobs.runtime.executor.task_stopwatch import Activity, TaskStopwatch, TimedRetries

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """A clock of seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def times(watch: TaskStopwatch) -> dict[str, float]:
    return {activity.value: watch.ms(activity) for activity in Activity if watch.ms(activity)}


def test_waits_for_input_and_for_the_reader_of_rows_are_no_processing() -> None:
    clock = Clock()

    def shuffle() -> Iterator[int]:
        for item in range(3):
            clock.now += 10  # the records are not there yet
            yield item
        clock.now += 5

    def operator(records: Iterator[int]) -> Iterator[int]:
        for item in records:
            clock.now += 1
            yield item

    watch = TaskStopwatch(Activity.PROCESS, clock)
    rows = watch.taken(operator(watch.pulled(shuffle(), Activity.INPUT)), Activity.OUTPUT)
    for _ in rows:
        clock.now += 100  # the reader takes its time
    assert times(watch) == {"input": 35_000, "process": 3_000, "output": 300_000}


def test_a_sink_that_pulls_rows_is_output_except_while_they_are_made() -> None:
    clock = Clock()

    def rows() -> Iterator[int]:
        for item in range(2):
            clock.now += 7
            yield item

    watch = TaskStopwatch(Activity.PROCESS, clock)
    with watch.during(Activity.OUTPUT):
        for _ in watch.pulled(rows(), Activity.PROCESS):
            clock.now += 2
        clock.now += 1
    assert times(watch) == {"process": 14_000, "output": 5_000}


def test_the_store_counts_as_the_store_wherever_it_is_used() -> None:
    clock = Clock()
    watch = TaskStopwatch(Activity.OPEN, clock)
    retries = TimedRetries(0, stopwatch=watch)

    def get() -> str:
        clock.now += 3
        return "content"

    clock.now += 1
    assert retries.run(get) == "content"
    watch.begin(Activity.FINISH)
    clock.now += 2
    retries.run(get)
    assert times(watch) == {"open": 1_000, "store": 6_000, "finish": 2_000}


def test_other_threads_count_as_what_the_task_does() -> None:
    clock = Clock()
    watch = TaskStopwatch(Activity.OPEN, clock)

    def download() -> None:
        with watch.during(Activity.STORE):
            clock.now += 4

    reader = threading.Thread(target=download)
    reader.start()
    reader.join()
    assert times(watch) == {"open": 4_000}


def test_a_reader_that_stops_early_ends_its_activity() -> None:
    clock = Clock()
    watch = TaskStopwatch(Activity.PROCESS, clock)
    with closing(watch.taken([1, 2], Activity.OUTPUT)) as rows:
        next(rows)
        clock.now += 1
    clock.now += 2
    assert times(watch) == {"process": 2_000, "output": 1_000}


@given(st.lists(st.tuples(st.sampled_from(Activity), st.integers(0, 1000)), max_size=20))
def test_all_activities_together_are_the_whole_time(moves: list[tuple[Activity, int]]) -> None:
    clock = Clock()
    watch = TaskStopwatch(Activity.INPUT, clock)
    for activity, seconds in moves:
        with watch.during(activity):
            clock.now += seconds
    assert sum(watch.ms(activity) for activity in Activity) == clock.now * 1000


def test_processor_time_is_that_since_the_task_began() -> None:
    processor = Clock()
    processor.now = 50
    watch = TaskStopwatch(Activity.INPUT, processor_clock=processor)
    processor.now = 52
    assert watch.processor_ms == 2000
