"""Drivers are SIGKILLed within the commit of a time-only batch: every window and timer is emitted exactly once."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.jobs.protocol.specification import CheckpointSettings
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.protocol.messages import Assignment

pytestmark = pytest.mark.real

WINDOWS_JOB = ROOT / "tests" / "support" / "jobs" / "windows_job.py"
TIME_BATCH = 3  # the third one to be committed: two of records come before it


def feed(home: Path, number: int, *records: tuple[str, int, int]) -> None:
    (home / "in").mkdir(exist_ok=True)
    written = home / f"{number}.json"
    fields = ("key", "at", "amount")
    written.write_text("".join(json.dumps(dict(zip(fields, record, strict=True))) + "\n" for record in records))
    os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
    written.rename(home / "in" / written.name)


def start(home: Path, drivers: list[DriverProcess], name: str, **environment: str) -> DriverProcess:
    driver = DriverProcess.start(home / name, artifact=WINDOWS_JOB, environment=environment)
    drivers.append(driver)
    return driver


def assignment(home: Path, attempt: int, parallelism: int) -> Assignment:
    return assignment_of(WINDOWS_JOB, home, attempt, parallelism, checkpoints=CheckpointSettings(interval_ms=600_000))


def emitted(home: Path, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in sink_rows(home / "out" / name))


@pytest.mark.exhaustive
@pytest.mark.parametrize("moment", ["batch.ran", "batch.committed"])
def test_windows_and_timers_of_idle_input_are_exact_when_their_batch_is_killed_in_its_commit(
    tmp_path: Path, drivers: list[DriverProcess], moment: str
) -> None:
    sync = tmp_path / "sync"
    sync.mkdir()
    first = start(tmp_path, drivers, "first", **{FAILPOINT: f"{moment}@{TIME_BATCH}", FAILPOINT_DIRECTORY: str(sync)})
    second = start(tmp_path, drivers, "second")
    feed(tmp_path, 1, ("a", 10, 1), ("b", 20, 2), ("a", 30, -5), ("a", 60, 4))
    feed(tmp_path, 2, ("a", 150, 8))
    first.assign(assignment(tmp_path, 1, 2))
    first.wait_for(lambda: any(sync.iterdir()), "a batch of time alone")
    first.kill()
    assert emitted(tmp_path, "windows") == []  # run, perhaps committed, and not published
    assert [row[:3] for row in emitted(tmp_path, "dead")] == [("a", 30, -5)]

    second.assign(assignment(tmp_path, 2, 3))
    windows = [("a", 0, 100, 5), ("b", 0, 100, 2)]
    reminders = [("a", 110, 3), ("b", 120, 1)]
    second.wait_for(lambda: len(emitted(tmp_path, "windows")) >= 2, "the windows of before the kill")
    second.wait_for(lambda: len(emitted(tmp_path, "reminders")) >= 2, "the timers of before the kill")
    assert (emitted(tmp_path, "windows"), emitted(tmp_path, "reminders")) == (windows, reminders)

    feed(tmp_path, 3, ("a", 40, 16), ("a", 1500, 1))
    windows = sorted([*windows, ("a", 0, 100, 21), ("a", 100, 200, 8)])
    second.wait_for(lambda: len(emitted(tmp_path, "windows")) >= len(windows), "a late firing and a further window")
    feed(tmp_path, 4, ("a", 50, 32), ("c", 1600, -1))
    second.wait_for(lambda: len(emitted(tmp_path, "dead")) >= 2, "the last batch")
    second.wait_for(lambda: emitted(tmp_path, "late"), "the last batch's late record")
    second.wait_for(lambda: len(emitted(tmp_path, "reminders")) >= 4, "the last timers")
    assert emitted(tmp_path, "windows") == windows
    assert emitted(tmp_path, "late") == [("a", 50, 32)]
    assert [row[:3] for row in emitted(tmp_path, "dead")] == [("a", 30, -5), ("c", 1600, -1)]
    assert emitted(tmp_path, "reminders") == [("a", 110, 3), ("a", 160, 4), ("a", 250, 4), ("b", 120, 1)]
