"""A subtask with two shards, as a scale-in leaves it, and its consolidations on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import ALWAYS, StateJob

if TYPE_CHECKING:
    from pathlib import Path


def two_shards(directory: Path) -> StateJob:
    """Two subtasks, rescaled to one: it has two shards."""
    job = StateJob(LocalObjectStore(directory / "store"), directory / "local", policy=ALWAYS)
    job.start(2)
    job.run_batch(dict.fromkeys(range(300), 1))
    job.run_batch(dict.fromkeys(range(0, 300, 7), 5))
    manifest, _ = job.checkpoint()
    job.start(1, manifest.path)
    return job


def leftovers(job: StateJob) -> list[Path]:
    """The consolidations on this host."""
    return [path for path in job.local_root.rglob("consolidation/*") if path.is_dir()]


def sst_files(job: StateJob, index: int = 0) -> list[Path]:
    return sorted(job.spec(index).local_directory(job.local_root).glob("try-*/**/*.sst"))
