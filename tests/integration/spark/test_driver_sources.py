"""Several sources of one job are read exactly once, through a kill, a rescale, another order and a further source."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.vocabulary import DriverState
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

UNION_JOB = ROOT / "tests" / "support" / "jobs" / "union_job.py"


class Fed:
    """The input of the sources: files of unique records of a few keys."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.nonces: list[tuple[str, str]] = []
        self.latest: dict[str, int] = {}

    def feed(self, source: str, number: int, times: range) -> None:
        records = [{"key": f"k{at % 3}", "at": at, "nonce": f"{source}-{at}"} for at in times]
        (self.home / "in" / source).mkdir(parents=True, exist_ok=True)
        written = self.home / f"{source}-{number}.json"
        written.write_text("".join(json.dumps(record) + "\n" for record in records))
        os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
        written.rename(self.home / "in" / source / f"{number}.json")
        self.nonces += [(str(record["key"]), str(record["nonce"])) for record in records]
        self.latest[source] = times[-1]

    def start(
        self,
        attempt: int,
        parallelism: int,
        sources: str,
        environment: dict[str, str] | None = None,
        *,
        skip_lost_records: bool = False,
    ) -> DriverProcess:
        driver = DriverProcess.start(self.home / f"driver-{attempt}", artifact=UNION_JOB, environment=environment)
        changes = {"parameters": {"sources": sources}, "checkpoints": CheckpointSettings(interval_ms=1000)}
        assignment = assignment_of(UNION_JOB, self.home, attempt, parallelism, **changes)
        driver.assign(assignment.model_copy(update={"skip_lost_records": skip_lost_records}))
        return driver

    def fired(self) -> set[int]:
        times = [row["fired"] for row in sink_rows(self.home / "out") if "fired" in row]
        assert len(times) == len(set(times)), "a timer fired twice"
        return set(times)

    def beyond(self) -> set[int]:
        """Event times that all sources have passed."""
        return {at for _, nonce in self.nonces if (at := int(nonce.split("-")[1])) < min(self.latest.values())}

    def is_done(self) -> bool:
        rows = [row for row in sink_rows(self.home / "out") if "nonce" in row]
        return len(rows) >= len(self.nonces) and self.fired() >= self.beyond()

    def check(self) -> None:
        rows = [row for row in sink_rows(self.home / "out") if "nonce" in row]
        assert sorted((row["key"], row["nonce"]) for row in rows) == sorted(self.nonces)
        counts: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            counts[row["key"]].append(row["count"])
        assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
        assert self.fired() == self.beyond()


@pytest.mark.exhaustive
def test_sources_are_read_exactly_once_through_a_kill_a_rescale_and_a_further_source(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    fed = Fed(tmp_path)
    for number in range(6):
        fed.feed("left", number, range(number * 20, number * 20 + 20))
    fed.feed("right", 0, range(50, 90))
    held = {FAILPOINT: "batch.committed@2", FAILPOINT_DIRECTORY: str(tmp_path)}
    drivers.append(fed.start(1, 2, "left,right", held))
    drivers[-1].wait_for(lambda: list(tmp_path.glob("batch.committed.*")), "a batch in the middle of the work")
    drivers[-1].kill()
    assert not fed.is_done()

    fed.feed("right", 1, range(120, 170))
    fed.feed("left", 6, range(300, 320))
    fed.feed("new", 0, range(1000, 1030))
    drivers.append(fed.start(2, 3, "new,right,left"))
    drivers[-1].wait_for(fed.is_done, "all records of three sources")
    fed.check()
    drivers[-1].kill()

    fed.feed("new", 1, range(1100, 1110))
    fed.feed("right", 2, range(330, 340))
    drivers.append(fed.start(3, 1, "right,left,new"))
    drivers[-1].wait_for(fed.is_done, "what came after the second kill")
    fed.check()


@pytest.mark.exhaustive
def test_a_file_that_was_deleted_before_its_batch_was_committed_is_not_left_out_silently(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    fed = Fed(tmp_path)
    for number in range(3):
        fed.feed("left", number, range(number * 20, number * 20 + 20))
    held = {FAILPOINT: "batch.planned@2", FAILPOINT_DIRECTORY: str(tmp_path)}
    drivers.append(fed.start(1, 2, "left", held))
    drivers[-1].wait_for(lambda: list(tmp_path.glob("batch.planned.*")), "a planned batch")
    drivers[-1].kill()
    (tmp_path / "in" / "left" / "1.json").unlink()

    drivers.append(fed.start(2, 2, "left"))
    drivers[-1].wait_for(lambda: (beat := drivers[-1].heartbeat()) and beat.state is DriverState.FAILED, "the failure")
    beat = drivers[-1].heartbeat()
    assert beat is not None
    assert beat.failure is not None
    assert beat.failure.code == "SOURCE_RECORDS_LOST"
    assert "1.json" in beat.failure.message
    assert "--skip-lost-records" in (beat.failure.advice or "")

    drivers.append(fed.start(3, 2, "left", skip_lost_records=True))
    left = {nonce for _, nonce in fed.nonces} - {f"left-{at}" for at in range(20, 40)}
    drivers[-1].wait_for(
        lambda: {row["nonce"] for row in sink_rows(tmp_path / "out") if "nonce" in row} == left, "all other records"
    )
