"""A thread dump says which Python workers it lacks."""

from __future__ import annotations

from keyscale.jobs.runtime.diagnostics.thread_dump import titles
from keyscale.jobs.spark_internals.live_executors import DRIVER, LiveExecutor


def test_an_executor_of_another_host_is_named_with_the_workers_that_are_missing() -> None:
    executors = [
        LiveExecutor("0", "away:7078", {}),
        LiveExecutor("1", "here:1", {}),
        LiveExecutor(DRIVER, "here:2", {}),
    ]
    found = titles(executors)
    assert found == {
        "0": "0 on away, without its Python workers: the driver cannot ask other hosts",
        "1": "1",
        DRIVER: DRIVER,
    }
