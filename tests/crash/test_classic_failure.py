"""The classic failure of a streaming job: it dies after it has processed records, before a checkpoint has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.installation import EXAMPLES
from keyscale.jobs.protocol.specification import CheckpointSettings
from tests.support.drivers.driven_job import DrivenJob, sink_batches, write_files
from tests.support.examples.page_views import counts, deliveries, ids_by_page
from tests.support.state.state_dump import dump

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.examples.page_views import View

# The default tier has the classic failure in tests/e2e/test_readme.py, and at each moment in a rehearsal.
pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

SCRIPT = EXAMPLES / "page_views.py"
NO_CHECKPOINT_MS = 10_000_000
OFTEN_MS = 1_000


@pytest.fixture
def job(tmp_path: Path) -> Iterator[DrivenJob]:
    made = DrivenJob(tmp_path, SCRIPT)
    yield made
    made.end()


@pytest.mark.parametrize(
    ("moment", "interval_ms"),
    [
        pytest.param("batch.ran@4", OFTEN_MS, id="after a checkpoint"),
        pytest.param("batch.committed@4", NO_CHECKPOINT_MS, id="committed, before any checkpoint"),
    ],
)
def test_the_classic_failure_page_views_are_counted_once_though_the_job_dies_between_processing_and_checkpoint(
    job: DrivenJob, moment: str, interval_ms: int
) -> None:
    files = deliveries(seed=4, files=7, records=40)
    write_files(job.input, [[{"view_id": view.view_id, "page": view.page} for view in file] for file in files])
    job.checkpoints = CheckpointSettings(interval_ms=interval_ms)
    first, second = job.standby(job.held_at(moment)), job.standby()
    job.assign(first, parallelism=2)
    first.wait_for(job.is_held, "a batch that is processed and in no checkpoint")
    if interval_ms == OFTEN_MS:
        first.wait_for(lambda: job.latest_checkpoint() is not None, "a checkpoint, begun before that batch")
    before = dict(sink_batches(job.output))
    first.kill()

    job.assign(second, parallelism=2, restore_from=job.latest_checkpoint())
    second.wait_for(lambda: len(list(sink_batches(job.output))) == len(files), "the rest of the output")
    savepoint = job.stop(second, "end", drain=True)

    assert set(before) == {0, 1, 2}, "the job was not killed in the fourth batch"
    batches = dict(sink_batches(job.output))
    assert {number: batches[number] for number in before} == before, "output that was there has changed"
    check_output([row for rows in batches.values() for row in rows], files)
    check_state(savepoint, files, job.home / "dump")


def check_output(rows: list[dict[str, Any]], files: list[list[View]]) -> None:
    """Every view is there once, and the counts of each page go from 1 to its number of views without a gap."""
    assert Counter((row["page"], row["view_id"]) for row in rows) == Counter(
        (page, view_id) for page, ids in ids_by_page(files).items() for view_id in ids
    )
    for page, views in counts(files).items():
        assert [row["views"] for row in rows if row["page"] == page] == list(range(1, views + 1))


def check_state(savepoint: str, files: list[list[View]], scratch: Path) -> None:
    """The ids and the counts say the same: none of the two is ahead of the other, nor of the input."""
    views = {row["key"]["page"]: row["value"] for row in dump(savepoint, "views", "views", scratch)}
    ids: dict[str, set[str]] = {}
    for row in dump(savepoint, "views", "view_ids", scratch):
        ids.setdefault(row["key"]["page"], set()).add(row["map_key"])
    assert ids == ids_by_page(files)
    assert views == counts(files) == {page: len(found) for page, found in ids.items()}
