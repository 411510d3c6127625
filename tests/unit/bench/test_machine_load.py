"""A table of a benchmark says how much of the machine other programs had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.machine_load import MARK, Counters, MachineLoad, describe_load
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def busy_orphan(environment: dict[str, str]) -> Iterator[int]:
    """Yields the id of a process that computes, and whose parent has ended."""
    started = subprocess.run(
        ["/bin/sh", "-c", '"$0" -c "while True: pass" >/dev/null 2>&1 & echo $!', sys.executable],
        env=environment,
        check=True,
        capture_output=True,
    )
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_process_without_a_parent_is_part_of_the_measurement_by_its_mark(
    monkeypatch: pytest.MonkeyPatch, *, is_marked: bool
) -> None:
    monkeypatch.setenv(MARK, "another one")
    load = MachineLoad()
    environment = dict(os.environ) if is_marked else {**os.environ, MARK: "another one"}
    with busy_orphan(environment) as pid:
        wait_until(lambda: sum(psutil.Process(pid).cpu_times()[:2]) >= 0.1)
        seconds = {process.pid: seconds for process, seconds in load.sample().items()}
    assert (pid in seconds) is is_marked
    assert seconds.get(pid, 0.1) >= 0.1
    assert os.getpid() in seconds


def test_a_child_is_part_of_the_measurement_without_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "another one")
    load = MachineLoad()
    child = subprocess.Popen([sys.executable, "-c", "input()"], env={}, stdin=subprocess.PIPE)
    try:
        assert child.pid in {process.pid for process in load.sample()}
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize(("own", "share"), [(40.0, "10 %"), (60.0, "0 %"), (61.0, "0 %")])
def test_the_share_of_others_is_what_the_measurement_did_not_use(own: float, share: str) -> None:
    before = Counters(load_average=0.25, busy=100.0, total=1000.0, own=5.0)
    now = Counters(load_average=2.0, busy=160.0, total=1200.0, own=5.0 + own)
    note = describe_load(before, now)
    assert "load average 0.2 at the beginning and 2.0 at the end" in note
    assert f"other programs had {share} of the processor time" in note
    assert f"{os.cpu_count()} processors" in note
