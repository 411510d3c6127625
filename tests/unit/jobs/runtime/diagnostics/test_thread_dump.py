"""A thread dump says which Python workers it lacks."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keyscale.jobs.runtime.diagnostics import thread_dump as thread_dump_module
from keyscale.jobs.runtime.diagnostics.thread_dump import thread_dump, titles
from keyscale.jobs.spark_internals.live_executors import DRIVER, LiveExecutor

if TYPE_CHECKING:
    import pytest


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


def test_a_dump_has_the_threads_of_the_driver_its_workers_and_all_jvms(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = "spark"
    executors = [LiveExecutor("0", "away:7078", {}), LiveExecutor(DRIVER, "here:2", {})]

    def threads_of(session: Any, executor: str) -> str:
        assert session == spark
        return f"threads of {executor}"

    workers = {"w1": lambda: "stacks of 1", "w2": lambda: "stacks of 2"}
    found = [SimpleNamespace(title=title, dump=dump) for title, dump in workers.items()]
    monkeypatch.setattr(thread_dump_module, "local_workers", {"mine": found}.__getitem__)
    monkeypatch.setattr(thread_dump_module, "live_executors", {spark: executors}.__getitem__)
    monkeypatch.setattr(thread_dump_module, "executor_threads", threads_of)
    reads = thread_dump(spark, "mine")
    assert [*reads] == ["driver", "w1", "w2", "JVM"]
    assert (reads["w1"](), reads["w2"]()) == ("stacks of 1", "stacks of 2")
    own = reads["driver"]()
    assert f'"{threading.current_thread().name}"\n  File ' in own
    assert "test_a_dump_has_the_threads" in own
    away, here = titles(executors).values()
    assert reads["JVM"]() == f"--- {away} ---\nthreads of 0\n--- {here} ---\nthreads of {DRIVER}"
