"""The machine's load during a measurement, and the measurement's own share."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLE_INTERVAL_SECONDS = 1.0
MARK = "KEYSCALE_BENCH_RUN"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters at a moment; all but the load average only grow.

    Attributes:
        load_average: Load average of the last minute.
        busy: Seconds of working processors, over all processors, including other virtual machines' seconds.
        total: Seconds of all processors.
        own: Seconds in which a processor worked for the measurement.
    """

    load_average: float
    busy: float
    total: float
    own: float


def describe_load(before: Counters, now: Counters) -> str:
    """Returns a table's note: the load, and the share of other programs."""
    others = max(0.0, (now.busy - before.busy) - (now.own - before.own))
    share = min(1.0, others / max(now.total - before.total, 0.01))
    return (
        f"machine: {os.cpu_count()} processors, load average {before.load_average:.1f} at the beginning and "
        f"{now.load_average:.1f} at the end; other programs had {share * 100:.0f} % of the processor time"
    )


class MachineLoad:
    """Watches the machine while this process and its children are measured.

    A mark in the environment and the descent identify processes of the measurement: a running PostgreSQL is no longer a
    descendant. The CPU seconds of a process are the last sample's, so up to a second of each ended process counts for
    other programs.
    """

    def __init__(self) -> None:
        os.environ[MARK] = uuid.uuid4().hex
        self._mark = f"{MARK}={os.environ[MARK]}".encode()
        self._own_seconds: dict[psutil.Process, float] = {psutil.Process(): 0.0}
        self._others: set[psutil.Process] = set()
        self._lock = threading.Lock()
        self._note = ""
        self._begun_at = time.monotonic()
        self._begun = self._counters()

    def start(self) -> None:
        """Starts sampling in a thread."""
        threading.Thread(target=self._sample_for_ever, name="machine-load", daemon=True).start()

    def note(self) -> str:
        """Returns the load since the previous note.

        Tables that come at once share a note.
        """
        if not self._note or time.monotonic() - self._begun_at > SAMPLE_INTERVAL_SECONDS:
            before, self._begun, self._begun_at = self._begun, self._counters(), time.monotonic()
            self._note = describe_load(before, self._begun)
        return self._note

    def sample(self) -> Mapping[psutil.Process, float]:
        """Returns the CPU seconds of each process of the measurement so far."""
        with self._lock:
            own = {process.pid for process in self._own_seconds}
            for process in psutil.process_iter():  # mostly parents first
                with contextlib.suppress(psutil.Error, OSError):
                    if process in self._others:
                        continue
                    if process in self._own_seconds or process.ppid() in own or self._is_marked(process.pid):
                        own.add(process.pid)
                        times = process.cpu_times()
                        self._own_seconds[process] = times.user + times.system
                    else:
                        self._others.add(process)
            return dict(self._own_seconds)

    def _sample_for_ever(self) -> None:
        while True:
            time.sleep(SAMPLE_INTERVAL_SECONDS)
            self.sample()

    def _is_marked(self, pid: int) -> bool:
        return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    def _counters(self) -> Counters:
        own = sum(self.sample().values())
        times = psutil.cpu_times()
        total = times.user + times.nice + times.system + times.idle + times.iowait
        total += times.irq + times.softirq + times.steal
        return Counters(os.getloadavg()[0], total - times.idle - times.iowait, total, own)
