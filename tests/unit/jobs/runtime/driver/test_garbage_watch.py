"""The share of garbage collection is of the tasks since the last reading."""

from __future__ import annotations

from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.garbage_watch import GarbageWatch
from keyscale.jobs.spark_internals.executor_times import ExecutorTimes


def test_the_share_is_of_the_tasks_since_the_last_reading_and_holds_while_none_runs() -> None:
    readings = [ExecutorTimes(1000, 900), ExecutorTimes(1400, 1000), ExecutorTimes(1400, 1000), None]
    now, status, shares = [0.0], DriverStatus(), []
    watch = GarbageWatch(lambda: readings.pop(0), status, clock=lambda: now[0])
    for now[0] in (0.0, 5.0, 10.0, 19.0, 20.0, 30.0):
        watch.poll()
        shares.append(status.heartbeat().metrics.garbage_collection_ratio)
    assert shares == [None, None, 0.25, 0.25, 0.25, 0.25]
    assert readings == []
