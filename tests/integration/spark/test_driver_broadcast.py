"""Broadcast and operator state stay exact through a kill in the middle of a batch and a rescale."""

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

pytestmark = pytest.mark.real

BROADCAST_JOB = ROOT / "tests" / "support" / "jobs" / "broadcast_job.py"


def feed(home: Path, source: str, number: int, records: list[dict[str, Any]]) -> None:
    (home / "in" / source).mkdir(parents=True, exist_ok=True)
    written = home / f"{source}-{number}.json"
    written.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
    written.rename(home / "in" / source / f"{number}.json")


def events(home: Path, number: int) -> list[str]:
    nonces = [f"{number}-{at}" for at in range(30)]
    feed(home, "events", number, [{"key": f"k{at}", "nonce": nonce} for at, nonce in enumerate(nonces)])
    return nonces


def start(home: Path, attempt: int, parallelism: int, environment: dict[str, str] | None = None) -> DriverProcess:
    driver = DriverProcess.start(home / f"driver-{attempt}", artifact=BROADCAST_JOB, environment=environment)
    checkpoints = CheckpointSettings(interval_ms=1000)
    driver.assign(assignment_of(BROADCAST_JOB, home, attempt, parallelism, checkpoints=checkpoints))
    return driver


@pytest.mark.exhaustive
def test_broadcast_and_operator_state_are_exact_through_a_kill_and_a_rescale(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    def rows(*, reported: bool) -> list[tuple[str, int | None]]:
        found = [row for row in sink_rows(tmp_path / "out") if row["reported"] is reported]
        return sorted((row["nonce"], row.get("limit")) for row in found)

    feed(tmp_path, "rules", 0, [{"name": "limit", "value": 5}, {"name": "limit", "value": 10}])
    early = [nonce for number in range(2) for nonce in events(tmp_path, number)]
    held = {FAILPOINT: "batch.ran@2", FAILPOINT_DIRECTORY: str(tmp_path)}
    drivers.append(start(tmp_path, 1, 2, held))
    drivers[-1].wait_for(lambda: list(tmp_path.glob("batch.ran.*")), "a second batch that is not committed")
    drivers[-1].kill()
    assert rows(reported=False) == sorted((nonce, 10) for nonce in early[:30]), "rules come before their batch's events"

    drivers.append(start(tmp_path, 2, 3))
    drivers[-1].wait_for(lambda: len(rows(reported=False)) >= 60, "the batch that was cut off")
    feed(tmp_path, "rules", 1, [{"name": "limit", "value": 20}])
    drivers[-1].wait_for(lambda: has_committed(drivers[-1], 2), "a batch with no records but broadcast ones")
    late = events(tmp_path, 2)
    drivers[-1].wait_for(lambda: len(rows(reported=False)) >= 90, "events after a new rule")
    drivers[-1].kill()

    drivers.append(start(tmp_path, 3, 1))
    feed(tmp_path, "rules", 2, [{"name": "report", "value": 1}])
    drivers[-1].wait_for(lambda: len(rows(reported=True)) >= 90, "what the subtasks' lists hold")
    last = events(tmp_path, 3)
    drivers[-1].wait_for(lambda: len(rows(reported=False)) >= 120, "events after two restarts")
    assert rows(reported=True) == sorted((nonce, None) for nonce in [*early, *late])
    limits = dict.fromkeys([*late, *last], 20) | dict.fromkeys(early, 10)
    assert rows(reported=False) == sorted(limits.items())


def has_committed(driver: DriverProcess, batch_id: int) -> bool:
    beat = driver.heartbeat()
    return beat is not None and beat.last_commit is not None and beat.last_commit.batch_id >= batch_id
