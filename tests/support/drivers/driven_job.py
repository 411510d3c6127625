"""One job under test on real drivers: its script, input, output and store, and one attempt after the other."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.jobs.protocol.messages import Command
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.vocabulary import CheckpointStatus, CommandKind
from tests.support.drivers.assignments import assignment as new_assignment
from tests.support.drivers.driver_process import DriverProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


@dataclass(slots=True)
class DrivenJob:
    """A script and its attempts. Each attempt is one driver process, started in standby.

    Attributes:
        home: Everything of the job is under it.
        script: The job.
        parameters: Besides `input` and `output`.
        max_parallelism: Key groups.
        checkpoints: How they are taken.
        cores: Of each driver.
        drivers: All that were started, by attempt.
    """

    home: Path
    script: Path
    parameters: dict[str, str] = field(default_factory=dict)
    max_parallelism: int = 16
    checkpoints: CheckpointSettings = field(default_factory=lambda: CheckpointSettings(interval_ms=1000))
    cores: int = 2
    drivers: list[DriverProcess] = field(default_factory=list)

    @property
    def input(self) -> Path:
        return self.home / "in"

    @property
    def output(self) -> Path:
        return self.home / "out"

    @property
    def store(self) -> Path:
        return self.home / "store"

    def standby(self, environment: Mapping[str, str] | None = None) -> DriverProcess:
        """Starts the driver of the next attempt, which waits."""
        home = self.home / f"driver-{len(self.drivers) + 1}"
        # One host: attempts find each other's files, as those that a control plane starts do.
        variables = {"KEYSCALE_LOCAL_STATE_DIR": str(self.home / "local"), **(environment or {})}
        driver = DriverProcess.start(home, cores=self.cores, artifact=self.script, environment=variables)
        self.drivers.append(driver)
        return driver

    def held_at(self, moment: str) -> dict[str, str]:
        """Variables of a driver that is to stand still at a named moment; see `keyscale.failpoints`."""
        directory = self.home / "sync"
        directory.mkdir()
        return {FAILPOINT: moment, FAILPOINT_DIRECTORY: str(directory)}

    def is_held(self) -> bool:
        return any((self.home / "sync").iterdir())

    def assign(self, driver: DriverProcess, parallelism: int, restore_from: str | None = None) -> None:
        """Gives a driver its work; the attempt's number is the driver's own."""
        attempt = self.drivers.index(driver) + 1
        driver.assign(
            new_assignment(
                job_id="driven",
                job_name="driven",
                attempt=attempt,
                parallelism=parallelism,
                max_parallelism=self.max_parallelism,
                artifact_filename=self.script.name,
                artifact_sha256=hashlib.sha256(self.script.read_bytes()).hexdigest(),
                parameters={"input": str(self.input), "output": str(self.output), **self.parameters},
                store_url=self.store.as_uri(),
                restore_from=restore_from,
                checkpoints=self.checkpoints,
            )
        )

    def latest_checkpoint(self) -> str | None:
        """The location that a control plane would restore from after the end of the newest driver that took one."""
        completed = [
            report.external_path
            for driver in self.drivers
            for report in driver.checkpoints()
            if report.status is CheckpointStatus.COMPLETED
        ]
        return completed[-1] if completed else None

    def stop(self, driver: DriverProcess, savepoint_id: str, *, drain: bool = False) -> str:
        """Stops a driver with a savepoint; returns its location."""
        command = Command(id=savepoint_id, kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id=savepoint_id, drain=drain)
        driver.command(command)
        result = driver.result(savepoint_id)
        assert result.status == "COMPLETED", result
        assert result.location
        assert driver.wait_for_exit() == 0, driver.log
        return result.location

    def end(self) -> None:
        """Makes sure that no driver is left, whatever the test did."""
        for driver in self.drivers:
            driver.end()


def write_files(directory: Path, files: Iterable[Iterable[Mapping[str, Any]]]) -> None:
    """Writes JSON-lines files that Spark reads in this order, one per batch where the job says so."""
    directory.mkdir(parents=True, exist_ok=True)
    first = len(list(directory.glob("*.json")))
    for number, records in enumerate(files, first):
        path = directory / f"{number:04}.json"
        temporary = path.with_suffix(".writing")
        temporary.write_text("".join(json.dumps(dict(record)) + "\n" for record in records))
        os.utime(temporary, (1_700_000_000 + number, 1_700_000_000 + number))
        temporary.rename(path)


def sink_batches(directory: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The view of a reader of a sink of JSON files: each batch's number and rows."""
    for batch in sorted(directory.glob("batch=*"), key=lambda path: int(path.name.removeprefix("batch="))):
        files = [file for file in sorted(batch.glob("*.json")) if not file.name.startswith(("_", "."))]
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        yield int(batch.name.removeprefix("batch=")), rows
