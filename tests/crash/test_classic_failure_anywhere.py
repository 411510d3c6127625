"""A process is killed at every named moment between a batch and its checkpoint, and another one goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.installation import IMPORT_PATH
from tests.support.examples.page_views import counts, ids_by_page
from tests.support.rehearsal.page_views_rehearsal import FILES, page_views_rehearsal
from tests.support.repository import ROOT
from tests.support.short_form import short_form
from tests.support.state.state_dump import dump
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rehearsal.rehearsal import Rehearsal

MOMENTS = (
    "batch.received@3",
    "batch.planned@3",
    "open.marker_taken@2",
    "task-mid-batch@5",
    "batch.changelog_written@5",
    "batch.changelog_written@6",
    "batch.ran@3",
    "log.appending@5",
    "log.appended@5",
    "batch.committed@3",
    "batch.published@3",
    "snapshot.shard_linked@5",
    "checkpoint.linked@3",
    "snapshot.file_uploaded@9",
    "checkpoint.uploaded@3",
    "checkpoint.publishing@3",
    "checkpoint.published@3",
)
SHORT_FORM = ("task-mid-batch@5", "log.appended@5", "checkpoint.uploaded@3")


@pytest.mark.parametrize("moment", short_form(MOMENTS, SHORT_FORM))
def test_page_views_are_counted_once_wherever_the_process_dies(tmp_path: Path, moment: str) -> None:
    killed_at(moment, tmp_path)
    committed = page_views_rehearsal(tmp_path).output("files")

    survivor = page_views_rehearsal(tmp_path, attempt=1)
    survivor.start(1 + MOMENTS.index(moment) % 3)
    survivor.drain()

    assert len(committed) < sum(counts(FILES).values()), "the process had nothing left to do"
    assert survivor.output("files")[: len(committed)] == committed
    check(survivor, tmp_path)


def test_a_job_that_forgets_what_was_committed_after_its_checkpoint_would_be_found_out(tmp_path: Path) -> None:
    """The control of the test above: the same failure with the log lost is not the same result."""
    job = page_views_rehearsal(tmp_path)
    job.start(2)
    job.run_batches(3)
    job.checkpoint()
    job.run_batches(2)
    lost = next(iter(sorted((tmp_path / "store").rglob("log/*"), key=lambda path: path.name, reverse=True)))
    lost.unlink()
    survivor = page_views_rehearsal(tmp_path, attempt=1)
    survivor.start(2)
    with pytest.raises(AssertionError):
        survivor.drain()  # the sink has the batch already, from a try that the log no longer names


def killed_at(moment: str, directory: Path) -> None:
    """Runs the job in a process of its own up to a moment, and kills it there."""
    barrier = directory / "barrier"
    barrier.mkdir()
    environment = {
        **os.environ,
        FAILPOINT: moment,
        FAILPOINT_DIRECTORY: str(barrier),
        "PYTHONPATH": os.pathsep.join((str(IMPORT_PATH), str(ROOT))),
    }
    command = [sys.executable, "-m", "tests.support.rehearsal.page_views_rehearsal", str(directory)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )

    def is_held() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return any(barrier.iterdir())

    try:
        wait_until(is_held, what=f"the process to reach {moment}")
    finally:
        process.kill()
        process.communicate()


def check(job: Rehearsal, directory: Path) -> None:
    """Every view is counted once in the sink, and the ids and the counts in state say the same."""
    rows = job.output("files")
    right = ids_by_page(FILES)
    assert Counter((row["page"], row["view_id"]) for row in rows) == Counter(
        (page, view_id) for page, ids in right.items() for view_id in ids
    )
    for page, ids in right.items():
        assert [row["views"] for row in rows if row["page"] == page] == list(range(1, len(ids) + 1))
    savepoint = job.checkpoint("end")
    entries = dump(savepoint, "views", "view_ids", directory / "dump")
    assert Counter((row["key"]["page"], row["map_key"]) for row in entries) == Counter(
        (page, view_id) for page, ids in right.items() for view_id in ids
    )
    views = dump(savepoint, "views", "views", directory / "dump")
    assert {row["key"]["page"]: row["value"] for row in views} == counts(FILES)
