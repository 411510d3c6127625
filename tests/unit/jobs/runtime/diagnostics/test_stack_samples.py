"""Samples of stacks are counted, for a flame graph."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from keyscale.jobs.runtime.diagnostics.stack_samples import folded, profile
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
        ((title, take),) = wait_until(lambda: list(profile(name, 0.1).items()), what="the worker")
        assert title.startswith("worker ")
        wait_until(lambda: "busy (<string>)" in take(), what="samples of the function")
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
    assert not take(), "a worker that has ended"
