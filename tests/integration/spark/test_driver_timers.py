"""Timers fire on idle input, once each, even after a rescale and after a kill of a driver that fired some."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.jobs.protocol.messages import Command
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.vocabulary import CommandKind, DriverState
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

TIMERS_JOB = ROOT / "tests" / "support" / "jobs" / "timers_job.py"


def feed(home: Path, number: int, *records: tuple[str, int]) -> None:
    (home / "in").mkdir(exist_ok=True)
    written = home / f"{number}.json"
    written.write_text("".join(json.dumps({"key": key, "at": at}) + "\n" for key, at in records))
    written.rename(home / "in" / written.name)


def start(
    home: Path,
    drivers: list[DriverProcess],
    attempt: int,
    parallelism: int,
    restore_from: str | None = None,
    **parameters: str,
) -> DriverProcess:
    driver = DriverProcess.start(home / f"driver-{attempt}", artifact=TIMERS_JOB)
    drivers.append(driver)
    checkpoints = CheckpointSettings(interval_ms=600_000)
    changes = {"restore_from": restore_from, "checkpoints": checkpoints, "parameters": parameters}
    driver.assign(assignment_of(TIMERS_JOB, home, attempt, parallelism, **changes))
    return driver


def fired(home: Path) -> list[tuple[str, Any]]:
    return sorted((row["key"], row.get("fired")) for row in sink_rows(home / "out" / "fired"))


def test_timers_fire_on_idle_input_through_a_rescale_and_a_kill(tmp_path: Path, drivers: list[DriverProcess]) -> None:
    early = [(f"k{number}", number * 10) for number in range(10)]
    feed(tmp_path, 1, *early)
    feed(tmp_path, 2, ("clock", 145))
    first = start(tmp_path, drivers, 1, 2)
    expected = sorted([(key, at + 100) for key, at in early if at + 100 <= 144] + [("clock", None)])
    first.wait_for(lambda: len(fired(tmp_path)) >= len(expected), "timers that fire although no input comes")
    assert fired(tmp_path) == expected
    first.command(Command(id="stop", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s"))
    savepoint = first.result("stop").location
    assert first.wait_for_exit() == 0, first.log

    feed(tmp_path, 3, ("late-key", 1000))
    second = start(tmp_path, drivers, 2, 3, savepoint)
    expected = sorted([(key, at + 100) for key, at in early] + [("clock", None)])
    second.wait_for(lambda: len(fired(tmp_path)) >= len(expected), "the timers of before the rescale")
    assert fired(tmp_path) == expected
    assert [row["key"] for row in sink_rows(tmp_path / "out" / "large")] == ["late-key"]
    second.kill()

    feed(tmp_path, 4, ("last", 5000))
    third = start(tmp_path, drivers, 3, 1, savepoint)
    expected = sorted([*expected, ("late-key", 1100)])
    third.wait_for(lambda: len(fired(tmp_path)) >= len(expected), "the timer of before the kill")
    assert fired(tmp_path) == expected
    assert [row["key"] for row in sink_rows(tmp_path / "out" / "large")] == ["late-key", "last"]


def test_a_job_that_is_drained_ends_although_input_keeps_coming(tmp_path: Path, drivers: list[DriverProcess]) -> None:
    for number in range(3):
        feed(tmp_path, number, (f"before-{number}", 100 * number))
    at_once = {
        "files_per_batch": "10000"
    }  # hundreds of files come in until the driver drains: few batches must read them
    driver = start(tmp_path, drivers, 1, 2, **at_once)
    driver.wait_for(lambda: (beat := driver.heartbeat()) and beat.state is DriverState.RUNNING, "a driver that runs")
    driver.command(Command(id="drain", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s", drain=True))
    more = itertools.count(10)

    def has_ended_while_input_comes() -> bool:
        number = next(more)
        feed(tmp_path, number, (f"after-{number}", 1000))
        return driver.process.poll() is not None

    wait_until(has_ended_while_input_comes, 240, what="the end of the drained job", poll=0.05)
    result = driver.result("drain")
    assert result.status == "COMPLETED", result
    names = [key for key, _ in fired(tmp_path)]
    assert [name for name in names if name.startswith("before")] == ["before-0", "before-1", "before-2"]
    assert len(names) < next(more) - 10 + 3, "it went on reading what came after the command"

    second = start(tmp_path, drivers, 2, 1, result.location, **at_once)
    expected = {f"after-{number}" for number in range(10, next(more) - 1)} | {f"before-{number}" for number in range(3)}
    feed(tmp_path, 9999, ("last", 2000))
    second.wait_for(lambda: expected <= {key for key, _ in fired(tmp_path)}, "what came after the command")
    keys = [key for key, _ in fired(tmp_path)]
    assert len(keys) == len(set(keys)), "a record was processed twice"


def test_a_drained_job_has_fired_every_event_time_timer(tmp_path: Path, drivers: list[DriverProcess]) -> None:
    feed(tmp_path, 1, ("early", 0))
    feed(tmp_path, 2, ("late", 500))
    driver = start(tmp_path, drivers, 1, 2)
    driver.wait_for(lambda: (beat := driver.heartbeat()) and beat.state is DriverState.RUNNING, "a driver that runs")
    driver.command(Command(id="drain", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s", drain=True))
    assert driver.result("drain").status == "COMPLETED"
    assert driver.wait_for_exit() == 0, driver.log
    assert fired(tmp_path) == [("early", 100), ("late", 600)]
