"""Runs one action on a job's state, to be killed at a sync point.

Its arguments are the directory of the store, the local directory, and an action.
"""

from __future__ import annotations

from pathlib import Path

from keyscale.identifiers import CheckpointId
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from tests.support.state.state_job import JOB, StateJob

FAR_FUTURE_MS = 4_000_000_000_000
BATCH = dict.fromkeys(range(60), 1000)


def resumed(store: Path, local_root: Path, parallelism: int, checkpoint_id: int) -> StateJob:
    """Starts a new attempt of the job, as a driver would."""
    job = StateJob(LocalObjectStore(store), local_root, next_checkpoint_id=CheckpointId(checkpoint_id))
    job.recover(parallelism)
    return job


def collect(job: StateJob) -> None:
    """Deletes all that the newest checkpoint does not need, whatever its age."""
    delete_planned(
        job.store, plan_deletion(gather_facts(job.store, JOB, FAR_FUTURE_MS), RetentionPolicy(retained_count=1))
    )


def main(store: str, local_root: str, action: str) -> None:
    job = resumed(Path(store), Path(local_root), parallelism=3, checkpoint_id=10)
    if action == "restore":
        job.dump()
    elif action == "batch":
        job.run_batch(BATCH)
    elif action == "checkpoint":
        job.checkpoint()
    elif action == "savepoint":
        job.checkpoint("mine")
    elif action == "collect":
        job.checkpoint()
        collect(job)
