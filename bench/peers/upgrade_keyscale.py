"""Upgrades of a running deduplication job with a large state.

A real control plane carries them out while records come in.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.peers.paced_job import (
    NEW_PER_FILE,
    ChangeFailedError,
    PacedInput,
    control_plane,
    end,
    job_settings,
    program,
    rows,
    start,
    wait_for_checkpoint,
)
from bench.store.keys import MAX_PARALLELISM
from keyscale.api.cli.operations import follow
from keyscale.client.request_paths import job_path
from keyscale.state.layout import split_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.client.keyscale import Keyscale


def run(*, work: str, keys: int, restore_from: str, ttl_hours: int, cores: int, changes: int) -> Mapping[str, Any]:
    """Starts a job from a savepoint and changes its program several times.

    Args:
        work: A fresh folder.
        keys: UUIDs number 0 to `keys` are in the savepoint.
        restore_from: The savepoint's location; the job keeps its objects in the same object store.
        ttl_hours: How long the job remembers an id.
        cores: The job's parallelism.
        changes: The number of program changes.

    Returns:
        Medians over the changes: `downtime_ms`, and `<phase>_ms` of each phase; and `output_rows` with the right
        number, `expected_rows`.

    Raises:
        ChangeFailedError: A change did not complete, or the job stopped making progress.
    """
    store_url, _ = split_location(restore_from)
    source, output = Path(work, "input"), Path(work, "output")
    source.mkdir()
    with control_plane(Path(work, "home"), store_url) as api, PacedInput(source, keys) as records:
        body = {
            "name": "upgraded",
            "restore_from": {"location": restore_from},
            "spec": {
                "artifact_id": program(api, 0),
                "parallelism": cores,
                "max_parallelism": MAX_PARALLELISM,
                **job_settings(source, output, ttl_hours=ttl_hours),
            },
        }
        job = api.post("/v1/jobs", body)["id"]
        try:
            start(api, job)
            made = [_upgraded(api, job, number) for number in range(1, changes + 1)]
            expected = records.end() * NEW_PER_FILE
            end(api, job, output, expected)
        finally:
            shutil.rmtree(Path(urlsplit(store_url).path, job), ignore_errors=True)  # the store is the savepoint's own
    phases = [{phase["phase"]: phase["duration_ms"] for phase in change["phases"]} for change in made]
    return {
        "downtime_ms": statistics.median(change["downtime_ms"] for change in made),
        **{f"{name.lower()}_ms": statistics.median(each[name] for each in phases) for name in phases[0]},
        "output_rows": rows(output),
        "expected_rows": expected,
    }


def _upgraded(api: Keyscale, job: str, version: int) -> Mapping[str, Any]:
    """Changes the program after a checkpoint of the present attempt."""
    wait_for_checkpoint(api, job)
    revision = api.get(job_path(job))["revision"]
    body = {"spec": {"artifact_id": program(api, version)}}
    accepted = api.patch(job_path(job), body, if_match=f'"{revision}"')
    change: Mapping[str, Any] = follow(api, accepted["id"])
    if change["status"] != "COMPLETED" or change["downtime_ms"] is None:
        raise ChangeFailedError(f"the change ended as {change['status']}: {change['failure']}")
    return change
