"""CPU seconds and peak memory of a process and its descendants.

They are JVMs, Python daemons and their workers.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_INTERVAL_SECONDS = 1.0
MEMORY_INTERVAL_SAMPLES = 3  # reading proportional sizes takes a tenth of a second of a JVM that is being measured


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """CPU time and peak memory of a process tree's whole life.

    Start-up is included.
    """

    cpu_seconds: float
    memory_peak_bytes: int


class ProcessTree:
    """Watches the session of a child, by sampling.

    Membership is by session and by descent, so an orphaned worker counts. The CPU seconds of a process are the last
    sample's, so at most one sampling interval per process is missed. Memory is the proportional set size (a page shared
    by n processes counts an n-th in each): summed over a tree of forked workers it is their real usage.
    """

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid
        self._cpu_seconds: dict[tuple[int, float], float] = {}
        self._memory_peak_bytes = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample_until_ended, name="process-tree", daemon=True)

    def start(self) -> None:
        self._sampler.start()

    def end(self) -> TreeUsage:
        """Stops sampling, and kills the child's remaining processes."""
        self._ended.set()
        self._sampler.join()
        for process in self._members():
            with contextlib.suppress(psutil.Error):
                process.kill()
        return TreeUsage(cpu_seconds=sum(self._cpu_seconds.values()), memory_peak_bytes=self._memory_peak_bytes)

    def _sample_until_ended(self) -> None:
        number = 0
        while not self._ended.wait(SAMPLE_INTERVAL_SECONDS):
            self._sample(with_memory=number % MEMORY_INTERVAL_SAMPLES == 0)
            number += 1

    def _sample(self, *, with_memory: bool) -> None:
        memory_bytes = 0
        for process in self._members():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu_seconds[process.pid, process.create_time()] = times.user + times.system
            if with_memory:
                memory_bytes += _proportional_set_size_bytes(process.pid)
        self._memory_peak_bytes = max(self._memory_peak_bytes, memory_bytes)

    def _members(self) -> list[psutil.Process]:
        members: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._root_pid)
            members = {process.pid: process for process in (root, *root.children(recursive=True))}
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error, OSError):
                if pid not in members and os.getsid(pid) == self._root_pid:
                    members[pid] = psutil.Process(pid)
        return list(members.values())


def _proportional_set_size_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
