"""A driver reads the stacks of its Python workers, also of a worker whose function hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.runtime.diagnostics.local_workers import LocalWorker, local_workers
from keyscale.jobs.runtime.executor.worker_stacks import ALL_THREADS, SAMPLES
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files in memory and /proc are Linux's")

NAME = "of-the-test"
DAEMON = """
import os, re, sys, threading
from keyscale.jobs.runtime.executor.worker_stacks import begin_task, offer_stacks_in_forks

def hang_in_c():  # a regular expression holds Python's lock
    begin_task("operator count, subtask 1, batch 3")
    threading.Thread(target=threading.Event().wait, name="beside", daemon=True).start()
    re.match("(a+)+$", "a" * 60 + "b")

offer_stacks_in_forks(sys.argv[1])
if os.fork() == 0:
    hang_in_c()
os.wait()
"""


@pytest.fixture
def worker() -> Iterator[LocalWorker]:
    """A worker whose function hangs in C, forked by a daemon without stack files."""
    name = f"{NAME}-{uuid.uuid4().hex}"  # a worker of the test before may still be ending
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, name],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
    )
    try:
        (found,) = wait_until(lambda: [each for each in local_workers(name) if each.task], what="the worker")
        assert found.pid != daemon.pid
        yield found
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def test_the_stacks_of_a_worker_that_hangs_in_c_show_its_function(worker: LocalWorker) -> None:
    assert worker.title == f"worker {worker.pid}: operator count, subtask 1, batch 3"
    for _ in range(2):  # a later dump has nothing of an earlier one
        found = worker.dump()
        assert found.count("in hang_in_c") == 1
        assert found.count("most recent call first") == 2, "both threads"


def test_a_sample_has_the_thread_of_the_function_alone(worker: LocalWorker) -> None:
    worker.empty(SAMPLES)
    assert worker.ask(SAMPLES)
    found = wait_until(lambda: "<module>" in (text := worker.read(SAMPLES)) and [text], what="the sample")
    assert found[0].count("most recent call first") == 1
    assert "in hang_in_c" in found[0]


def test_a_process_without_a_handler_gets_no_signal(worker: LocalWorker) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        mistaken = worker._replace(pid=bystander.pid)
        assert not mistaken.ask(ALL_THREADS)
        assert bystander.poll() is None
    finally:
        bystander.communicate()
    assert not mistaken.ask(ALL_THREADS), "a process that has ended"


def test_workers_of_another_driver_are_not_found(worker: LocalWorker) -> None:
    assert local_workers(worker.name) == [worker]
    assert local_workers("another") == []


def test_a_file_of_another_process_with_the_number_of_the_worker_is_left_alone(
    worker: LocalWorker, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    with theirs.open("r+b") as opened:
        descriptors = dict.fromkeys(worker.descriptors, str(opened.fileno()))
        mistaken = LocalWorker(os.getpid(), worker.name, descriptors)
        mistaken.empty(ALL_THREADS)
        assert (mistaken.task, mistaken.read(SAMPLES)) == ("", "")
    assert theirs.read_text() == "precious"
