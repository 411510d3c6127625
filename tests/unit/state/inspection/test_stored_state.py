"""The facts for a plan, read from the store of a job that has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.identifiers import JobId
from keyscale.state.inspection.stored_state import read_stored_state
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.rehearsal.page_views_rehearsal import PARALLELISM, page_views_rehearsal
from tests.support.rehearsal.rehearsal import JOB

if TYPE_CHECKING:
    from pathlib import Path


def test_it_has_the_schemas_of_all_operators_and_the_newest_checkpoint(tmp_path: Path) -> None:
    job = page_views_rehearsal(tmp_path)
    job.start(PARALLELISM)
    job.run_batches(2)
    job.checkpoint()
    job.run_batches(1)
    stored = read_stored_state(LocalObjectStore(tmp_path / "store"), JOB, None)
    assert stored.manifest is not None
    assert stored.resume.batch_id > stored.manifest.batch_id
    states = {
        uid: [each.name for each in history.schema.states]
        for uid, history in stored.resume.operators.items()
        if history.schema
    }
    assert states
    assert all(states.values())


def test_a_job_that_has_never_run_has_stored_nothing(tmp_path: Path) -> None:
    stored = read_stored_state(LocalObjectStore(tmp_path), JobId("never"), None)
    assert (stored.manifest, stored.resume.operators, stored.operator_state, stored.sources) == (None, {}, {}, {})
