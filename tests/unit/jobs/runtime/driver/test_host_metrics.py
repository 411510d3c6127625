"""A driver's processes and their host are measured, and not too often."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil

from keyscale.jobs.runtime.driver import host_metrics
from keyscale.jobs.runtime.driver.host_metrics import HostMetrics
from keyscale.metrics import DRIVER, of_scope


def test_the_measured_metrics_are_metrics_of_a_driver() -> None:
    measured = HostMetrics(lambda: 5).measure()
    assert measured["jvm_heap_bytes"] == 5
    assert measured["process_memory_bytes"] > 1 << 20
    assert measured["process_ms"] > 0
    assert measured["host_load_ratio"] >= 0
    assert measured.keys() <= {metric.name for metric in of_scope(DRIVER)}


def test_what_is_unknown_of_a_jvm_is_left_out() -> None:
    assert "jvm_heap_bytes" not in HostMetrics(lambda: None).measure()


def test_batches_that_follow_each_other_are_not_all_measured() -> None:
    now_s = 100.0
    metrics = HostMetrics(lambda: None, clock=lambda: now_s)
    assert metrics.measure()
    now_s += 9
    assert metrics.measure() == {}
    now_s += 1
    assert metrics.measure()


def test_a_driver_without_its_spark_submit_has_no_processes_to_measure(monkeypatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)
    assert "process_ms" not in HostMetrics(lambda: None).measure()


def test_the_processes_of_a_driver_are_added_up_without_those_that_have_ended(monkeypatch) -> None:
    class Process:
        def __init__(self, number: int) -> None:
            self.number = number

        def children(self, *, recursive: bool) -> list[Process]:
            assert recursive
            return [Process(2), Process(3)]

        def cpu_times(self) -> SimpleNamespace:
            if self.number == 2:
                raise psutil.NoSuchProcess(2)
            return SimpleNamespace(user=self.number, system=0.25)

        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=100 * self.number)

    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(host_metrics.psutil, "Process", Process)
    measured = HostMetrics(lambda: None).measure()
    assert (measured["process_memory_bytes"], measured["process_ms"]) == (400, 4500)
