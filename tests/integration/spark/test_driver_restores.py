"""Real drivers start from any savepoint: a fork beside the job that runs on, and the job itself back in time."""

from __future__ import annotations

import json
import os
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale import ValueStateDescriptor
from keyscale.jobs.protocol.messages import Command
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.state_io import EVENT_TIMERS, NewOperator, NewState, NewTimers, write
from keyscale.vocabulary import CommandKind
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

UNION_JOB = ROOT / "tests" / "support" / "jobs" / "union_job.py"
KEYS = 3


def feed(home: Path, source: str, number: int) -> list[tuple[str, str]]:
    """Adds a file of ten records; returns their keys and nonces."""
    records = [
        {"key": f"k{at % KEYS}", "at": at, "nonce": f"{source}-{at}"} for at in range(number * 10, number * 10 + 10)
    ]
    (home / "in" / source).mkdir(parents=True, exist_ok=True)
    written = home / f"{source}-{number}.json"
    written.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
    written.rename(home / "in" / source / f"{number}.json")
    return [(str(record["key"]), str(record["nonce"])) for record in records]


def counted(output: Path) -> list[tuple[str, str, int]]:
    rows = [row for row in sink_rows(output) if "nonce" in row] if output.exists() else []
    return sorted((row["key"], row["nonce"], row["count"]) for row in rows)


def numbers(rows: list[tuple[str, str, int]]) -> dict[str, list[int]]:
    return {key: sorted(count for each, _, count in rows if each == key) for key in {row[0] for row in rows}}


def start(home: Path, name: str, attempt: int, parallelism: int, **changes: Any) -> DriverProcess:
    driver = DriverProcess.start(home / name, artifact=UNION_JOB)
    checkpoints = CheckpointSettings(interval_ms=3_600_000)
    driver.assign(assignment_of(UNION_JOB, home, attempt, parallelism, checkpoints=checkpoints, **changes))
    return driver


def savepoint(driver: DriverProcess, savepoint_id: str) -> str:
    driver.command(Command(id=savepoint_id, kind=CommandKind.SAVEPOINT, savepoint_id=savepoint_id))
    result = driver.result(savepoint_id)
    assert result.location, result
    return result.location


@pytest.mark.exhaustive
def test_a_job_is_forked_at_another_parallelism_without_one_of_its_sources_and_itself_goes_back(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    both, output = {"sources": "left,right"}, tmp_path / "out"
    before = [*feed(tmp_path, "left", 0), *feed(tmp_path, "left", 1), *feed(tmp_path, "right", 0)]
    drivers.append(original := start(tmp_path, "original", 1, 2, parameters=both))
    original.wait_for(lambda: len(counted(output)) == len(before), "what was there before the savepoint")
    at_savepoint = counted(output)
    location = savepoint(original, "past")

    later = feed(tmp_path, "left", 2)
    original.wait_for(lambda: len(counted(output)) == len(before) + len(later), "what came after the savepoint")
    fork = {
        "job_id": "fork",
        "restore_mode": "rewind",
        "restore_from": location,
        "restore_id": "fork",
        "allow_non_restored_state": True,
        "parameters": {"sources": "left", "output": str(tmp_path / "of fork")},
    }
    drivers.append(forked := start(tmp_path, "fork", 1, 3, **fork))
    forked.wait_for(lambda: len(counted(tmp_path / "of fork")) == len(later), "what the fork has read")
    counts = numbers([*at_savepoint, *counted(tmp_path / "of fork")])
    assert counts == numbers(counted(output)), "the fork counts on from the savepoint"
    feed(tmp_path, "right", 1)
    original.wait_for(lambda: len(counted(output)) == len(before) + 20, "the original, which runs on")
    assert len(counted(tmp_path / "of fork")) == len(later), "it no longer has that source"

    for driver in (original, forked):
        driver.kill()
    (tmp_path / "in" / "left" / "2.json").unlink()
    back = {"restore_mode": "rewind", "restore_from": location, "restore_id": "back", "parameters": both}
    drivers.append(rewound := start(tmp_path, "rewound", 2, 1, **back))
    rewound.wait_for(lambda: ("right-19" in {row[1] for row in counted(output)}) and len(counted(output)) == 40, "all")
    assert set(at_savepoint) < set(counted(output))
    assert not {nonce for _, nonce in later} & {row[1] for row in counted(output)}, "its batches are gone"
    assert (tmp_path / "store" / "union_job" / "savepoints" / "past" / "manifest.json").exists()
    assert "goes back to union_job/savepoints/past/manifest.json" in rewound.log


@pytest.mark.exhaustive
def test_a_job_starts_from_state_that_was_computed_from_its_history(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    counts = pa.table({"key": ["k0", "k1"], "value": [100, 50]})
    alarms = pa.table({"key": ["k0", "k1"], "time_ms": [-5, 2**50]})
    states = [NewState(ValueStateDescriptor("count", pa.int64()), counts), NewTimers(EVENT_TIMERS, alarms)]
    location = write(
        f"file://{tmp_path}/store/history/savepoints/counts",
        [NewOperator("numbered", {"key": pa.string()}, states)],
        max_parallelism=16,
        parallelism=3,
    )
    feed(tmp_path, "left", 0)
    restore = {"restore_mode": "rewind", "restore_from": location, "restore_id": "history"}
    drivers.append(job := start(tmp_path, "job", 1, 2, parameters={"sources": "left"}, **restore))
    job.wait_for(lambda: len(counted(tmp_path / "out")) == 10, "the records after the history")
    found = numbers(counted(tmp_path / "out"))
    assert found == {"k0": [101, 102, 103, 104], "k1": [51, 52, 53], "k2": [1, 2, 3]}
    fired = lambda: [row["fired"] for row in sink_rows(tmp_path / "out") if row.get("key") == "k0" and "fired" in row]  # noqa: E731
    job.wait_for(lambda: -5 in fired(), "the timer of the history")


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["claim", "no_claim"])
def test_a_claimed_savepoint_is_deleted_once_the_heir_needs_it_no_longer_and_another_one_stays(
    tmp_path: Path, drivers: list[DriverProcess], mode: str
) -> None:
    first = [*feed(tmp_path, "left", 0), *feed(tmp_path, "left", 1)]
    left = {"sources": "left"}
    drivers.append(original := start(tmp_path, "original", 1, 2, parameters=left))
    original.wait_for(lambda: len(counted(tmp_path / "out")) == len(first), "what was there before the savepoint")
    location = savepoint(original, "given")
    original.kill()
    feed(tmp_path, "left", 2)
    restore = {
        "job_id": "heir",
        "restore_mode": "rewind",
        "restore_from": location,
        "restore_id": "w",
        "claim_mode": mode,
    }
    heir_output = {**left, "output": str(tmp_path / "of heir")}
    drivers.append(heir := start(tmp_path, "heir", 1, 1, parameters=heir_output, **restore))
    heir.wait_for(lambda: len(counted(tmp_path / "of heir")) == 10, "what came after the savepoint")
    manifest = tmp_path / "store" / "union_job" / "savepoints" / "given" / "manifest.json"
    assert manifest.exists()
    ids = (f"own-{number}" for number in count(1))

    def has_cleaned_up() -> bool:
        heir.command(Command(id=(command := next(ids)), kind=CommandKind.CHECKPOINT))
        assert heir.result(command).status == "COMPLETED"
        return "keyscale.state.retention.deletion: deleted" in heir.log

    heir.wait_for(has_cleaned_up, "a clean-up: the first one follows a checkpoint that is taken after a minute")
    assert manifest.exists() is (mode == "no_claim")
    feed(tmp_path, "left", 3)
    heir.wait_for(lambda: len(counted(tmp_path / "of heir")) == 20, "a batch after that")
    heir.kill()
    drivers.append(again := start(tmp_path, "again", 2, 2, parameters=heir_output, **restore))
    feed(tmp_path, "left", 4)
    again.wait_for(lambda: len(counted(tmp_path / "of heir")) == 30, "the same restore, which is not carried out again")


@pytest.mark.exhaustive
def test_a_stateless_start_reads_everything_again_and_replaces_the_output(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    first, left = feed(tmp_path, "left", 0), {"sources": "left"}
    drivers.append(original := start(tmp_path, "original", 1, 2, parameters=left))
    original.wait_for(lambda: len(counted(tmp_path / "out")) == len(first), "the first file")
    original.kill()
    for name in ("0", "1"):
        (tmp_path / "in" / "left" / f"{name}.json").unlink(missing_ok=True)
        feed(tmp_path, "left", 5 + int(name))
    drivers.append(fresh := start(tmp_path, "fresh", 2, 1, parameters=left, restore_mode="stateless", restore_id="new"))
    fresh.wait_for(lambda: len(counted(tmp_path / "out")) == 20, "both new files")
    assert numbers(counted(tmp_path / "out")) == {"k0": [*range(1, 8)], "k1": [*range(1, 7)], "k2": [*range(1, 8)]}
