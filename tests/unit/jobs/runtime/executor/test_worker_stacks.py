"""A worker offers its stacks in files of its own, in every process that a daemon forks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.jobs.runtime.executor import worker_stacks
from keyscale.jobs.runtime.executor.worker_stacks import ALL_THREADS, SAMPLES, TASK, WorkerStacks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int, bool]]]:
    """The signals that are answered, into which file, and whether with all threads; nothing stays of the process."""
    found: list[tuple[int, int, bool]] = []

    def register(number: int, file: int, *, all_threads: bool) -> None:
        found.append((number, file, all_threads))

    monkeypatch.setattr(worker_stacks.faulthandler, "register", register)
    monkeypatch.setattr(worker_stacks, "_OF_PROCESS", [])
    yield found
    for stacks in worker_stacks._OF_PROCESS:
        for file in stacks._files:
            os.close(file)


def links(stacks: WorkerStacks) -> list[str]:
    return [str(Path(f"/proc/self/fd/{file}").readlink()) for file in stacks._files]


def test_each_new_process_answers_into_files_of_its_own(
    registered: list[tuple[int, int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forks: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda *, after_in_child: forks.append(after_in_child))
    worker_stacks.begin_task("no worker here")
    worker_stacks.offer_stacks_in_forks("mine")
    (stacks,) = worker_stacks._OF_PROCESS
    worker_stacks.begin_task("a daemon has no files")
    assert (stacks._files, registered) == ([], [])
    for offer in (*forks, *forks):
        registered.clear()
        before = [*stacks._files]
        inherited = [os.fstat(file).st_ino for file in before]
        offer()
        threads, samples, task = stacks._files
        assert links(stacks) == [each.link("mine") for each in (ALL_THREADS, SAMPLES, TASK)]
        assert not {os.fstat(file).st_ino for file in stacks._files} & {*inherited}
        assert registered == [(ALL_THREADS.signal, threads, True), (SAMPLES.signal, samples, False)]
        os.write(threads, b"one")
        os.pwrite(threads, b"two", 0)  # as after the reader has emptied the file: a dump begins at its end
        assert os.pread(threads, 10, 0) == b"onetwo"
        for name in ("operator count, subtask 1, batch 3", "short", "ä" * 500):
            worker_stacks.begin_task(name)
            assert os.pread(task, 1000, 0).decode(errors="ignore").rstrip() == name[:200].rstrip()
    assert len({each.signal for each in (ALL_THREADS, SAMPLES)}) == 2
