"""A job on real drivers is rescaled from 2 to 3, to 5 and to 1: each savepoint holds the same state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.installation import EXAMPLES
from keyscale.jobs.protocol.messages import Command
from keyscale.state_io import StateReader
from keyscale.vocabulary import CommandKind
from tests.support.drivers.driven_job import DrivenJob, sink_batches, write_files
from tests.support.examples.page_views import View, counts, deliveries, ids_by_page
from tests.support.state.state_dump import dump

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.drivers.driver_process import DriverProcess

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

SCRIPT = EXAMPLES / "page_views.py"
PARALLELISMS = (2, 3, 5, 1)
FILES_A_STEP = 2

Dump = list[dict[str, Any]]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[DrivenJob]:
    made = DrivenJob(tmp_path, SCRIPT)
    yield made
    made.end()


def test_a_job_rescaled_from_2_to_3_to_5_to_1_has_the_same_state_before_and_after_each_step(job: DrivenJob) -> None:
    files = deliveries(seed=6, files=FILES_A_STEP * len(PARALLELISMS), records=40)
    job.input.mkdir()
    savepoint: str | None = None
    driver = job.standby()
    for step, parallelism in enumerate(PARALLELISMS):
        job.assign(driver, parallelism, restore_from=savepoint)
        if savepoint is not None:
            moved = take_savepoint(driver, f"moved-{step}")
            assert state_of(moved, job.home) == state_of(savepoint, job.home)
            assert subtasks_of(moved) <= parallelism
        known = files[: FILES_A_STEP * (step + 1)]
        deliver(job, known[-FILES_A_STEP:])
        driver.wait_for(lambda known=known: len(list(sink_batches(job.output))) == len(known), "the step's output")
        following = job.standby() if step + 1 < len(PARALLELISMS) else driver
        savepoint = job.stop(driver, f"step-{step}")
        check(state_of(savepoint, job.home), known)
        driver = following


def take_savepoint(driver: DriverProcess, name: str) -> str:
    driver.wait_for(driver.heartbeat, "the driver's first words")
    driver.command(Command(id=name, kind=CommandKind.SAVEPOINT, savepoint_id=name))
    result = driver.result(name)
    assert result.location, result
    return result.location


def deliver(job: DrivenJob, files: list[list[View]]) -> None:
    write_files(job.input, [[{"view_id": view.view_id, "page": view.page} for view in file] for file in files])


def state_of(savepoint: str, home: Path) -> tuple[Dump, Dump]:
    """Both states of the job, as the command line dumps them."""
    return by_key(dump(savepoint, "views", "views", home / "dump")), by_key(
        dump(savepoint, "views", "view_ids", home / "dump")
    )


def by_key(entries: Dump) -> Dump:
    return sorted(entries, key=lambda entry: (entry["key_group"], entry["key"]["page"], str(entry.get("map_key"))))


def subtasks_of(savepoint: str) -> int:
    """How many subtasks the snapshot of the operator has."""
    with StateReader.open(savepoint) as reader:
        return len(reader.point.operator("views").snapshots)


def check(state: tuple[Dump, Dump], files: list[list[View]]) -> None:
    views, ids = state
    assert {entry["key"]["page"]: entry["value"] for entry in views} == counts(files)
    found: dict[str, set[str]] = {}
    for entry in ids:
        found.setdefault(entry["key"]["page"], set()).add(entry["map_key"])
    assert found == ids_by_page(files)
