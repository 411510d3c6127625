"""Samples of stacks are counted, for a flame graph."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from keyscale.jobs.runtime.diagnostics.local_workers import local_workers
from keyscale.jobs.runtime.diagnostics.stack_samples import folded, profile
from keyscale.jobs.runtime.errors import NoLocalWorkerError
from keyscale.jobs.spark_internals.live_executors import DRIVER, LiveExecutor
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

SAMPLES = """Stack (most recent call first):
  File "/lib/python/re.py", line 12 in match
  File "/jobs/a;b.py", line 7 in count
Stack (most recent call first):
  File "/jobs/a;b.py", line 9 in count
Stack (most recent call first):
  File "/lib/python/re.py", line 12 in match
  File "/jobs/a;b.py", line 8 in count
Stack (most recent call first):
  <no Python frame>
"""
BUSY = """
import os, sys
from keyscale.jobs.runtime.executor.worker_stacks import offer_stacks_in_forks
def busy():
    while True:
        pass
offer_stacks_in_forks(sys.argv[1])
if os.fork() == 0:
    busy()
os.wait()
"""


def test_equal_stacks_are_counted_whatever_their_lines_and_the_outermost_function_is_first() -> None:
    assert folded(SAMPLES, ["/lib/python", "/lib"]) == (
        "count (/jobs/a,b.py);match (re.py) 2\ncount (/jobs/a,b.py) 1\n"
    )
    assert not folded("")


def test_a_profile_shows_the_function_in_which_a_worker_is_busy() -> None:
    name = f"busy-{os.getpid()}"
    daemon = subprocess.Popen(
        [sys.executable, "-c", BUSY, name], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, start_new_session=True
    )
    try:
        wait_until(lambda: local_workers(name), what="the worker")
        executors = [
            LiveExecutor(DRIVER, "here:1", {}),
            LiveExecutor("0", "here:2", {}),
            LiveExecutor("1", "away:3", {}),
        ]
        (title, take), (other, told) = profile(name, 0.1, lambda: executors).items()
        assert title.startswith("worker ")
        assert (other, told()) == (
            "executor 1 on away",
            "Its Python workers are not in the profile: the driver cannot ask other hosts.",
        )
        wait_until(lambda: "busy (<string>)" in take(), what="samples of the function")
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
    assert not take(), "a worker that has ended"


def test_a_profile_of_workers_elsewhere_says_that_the_driver_cannot_ask_them() -> None:
    with pytest.raises(NoLocalWorkerError, match="the driver asks no other host"):
        profile(f"of another host than {os.getpid()}", 0.1, list)
