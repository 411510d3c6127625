"""Random histories of a job: batches, snapshots, kills, lost disks, and rescales with and without a new driver."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import keyscale.jobs.runtime.driver.batch_loop
import keyscale.jobs.runtime.driver.checkpoints
from keyscale.identifiers import CheckpointId
from keyscale.state.documents.manifest import read_manifest, write_manifest
from keyscale.state.layout import split_location
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.examples.page_views import ids_by_page
from tests.support.rehearsal.page_views_rehearsal import FILES, page_views_rehearsal
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.rehearsal.rehearsal import Rehearsal

SEEDS = range(6)
SHORT_FORM = (0,)  # the simulator plays many more histories, with more faults
STEPS_MAX = 40
BATCH_MOMENTS = ("batch.received", "batch.planned", "batch.ran", "batch.committed", "batch.published")
CHECKPOINT_MOMENTS = ("checkpoint.linked", "checkpoint.uploaded", "checkpoint.publishing", "checkpoint.published")


class KilledError(Exception):
    """Stands for the end of a process."""


@pytest.mark.parametrize("seed", short_form(SEEDS, SHORT_FORM))
def test_a_random_history_counts_every_view_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    play(tmp_path, monkeypatch, seed)


def play(directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Plays a history up to the end of the input, and checks what a reader of the sink has seen at every step."""
    history = random.Random(seed)
    job = page_views_rehearsal(directory)
    hint: str | None = None
    seen: list[dict[str, Any]] = []
    job.start(history.randrange(1, 5))
    for step in range(STEPS_MAX):
        if job.is_at_end:
            break
        action = history.choice(
            ("batch", "batch", "checkpoint", "savepoint", "rescale", "kill", "die in batch", "die in checkpoint")
        )
        if action == "batch":
            job.run_batches(1)
        elif action == "checkpoint":
            hint = job.checkpoint()
        elif action == "savepoint":
            hint = job.checkpoint(f"savepoint-{step}")
        elif action == "rescale":
            job.rescale(history.randrange(1, 5), meanwhile=history.randrange(2))
        elif action == "die in batch":
            die(monkeypatch, history.choice(BATCH_MOMENTS), lambda: job.run_batches(1))
        elif action == "die in checkpoint":
            die(monkeypatch, history.choice(CHECKPOINT_MOMENTS), job.checkpoint)
        if "die" in action or action == "kill":
            # A control plane knows the latest checkpoint, an older one, or none; the next host has old files or none.
            restart(job, history, hint if history.random() < 0.7 else None)
        rows = job.output("files")
        assert rows[: len(seen)] == seen, f"step {step} ({action}) has changed what was published"
        seen = rows
    job.drain()
    check(job)


def restart(job: Rehearsal, history: random.Random, hint: str | None) -> None:
    """Starts the next attempt. Checkpoints wait for the batch that a dead attempt has planned, so that comes first."""
    local = history.choice(("local", "local", "other", f"new-{job.attempt}"))
    job.start(history.randrange(1, 5), hint, local=local)
    if not job.is_at_end:
        job.run_batches(1)


def die(monkeypatch: pytest.MonkeyPatch, moment: str, act: Callable[[], object]) -> None:
    """Does something that ends at a moment, as a process that is killed there does."""

    def failpoint(name: str) -> None:
        if name == moment:
            raise KilledError(moment)

    with monkeypatch.context() as patch:
        patch.setattr(keyscale.jobs.runtime.driver.batch_loop, "failpoint", failpoint)
        patch.setattr(keyscale.jobs.runtime.driver.checkpoints, "failpoint", failpoint)
        with pytest.raises(KilledError):
            act()


def check(job: Rehearsal) -> None:
    rows = job.output("files")
    right = ids_by_page(FILES)
    assert Counter((row["page"], row["view_id"]) for row in rows) == Counter(
        (page, view_id) for page, ids in right.items() for view_id in ids
    )
    for page, ids in right.items():
        assert [row["views"] for row in rows if row["page"] == page] == list(range(1, len(ids) + 1))


def test_a_number_that_an_overtaken_driver_has_published_late_is_left_out(tmp_path: Path) -> None:
    job = page_views_rehearsal(tmp_path)
    job.start(2)
    job.run_batches(1)
    first = job.checkpoint()
    job.start(2)
    store = LocalObjectStore(tmp_path / "store")
    late = read_manifest(store, split_location(first)[1])
    write_manifest(store, msgspec.structs.replace(late, checkpoint_id=CheckpointId(2)))
    job.run_batches(1)
    third = job.checkpoint()
    assert read_manifest(store, split_location(third)[1]).checkpoint_id == 3
    job.drain()
    check(job)
