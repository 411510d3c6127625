"""Rescales of a running deduplication, live or by a new driver.

A real control plane carries them out while records come in.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from keyscale.api.cli.operations import follow
from keyscale.client.request_paths import job_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run(*, work: str, mode: str, parallelisms: Sequence[int]) -> Mapping[str, Any]:
    """Starts a job at the last parallelism, and rescales it to each.

    Args:
        work: A fresh folder.
        mode: The job's `rescale_mode`.
        parallelisms: The parallelisms, in order.

    Returns:
        Medians over the rescales: `pause_ms`, from the last commit before to the first one after; `done_ms`, from the
        request to the end; and `held_ms`, if rescales were live. Also `output_rows` with the right number,
        `expected_rows`.

    Raises:
        ChangeFailedError: A rescale took another way or did not complete.
    """
    source, output = Path(work, "input"), Path(work, "output")
    source.mkdir()
    with control_plane(Path(work, "home"), Path(work, "store").as_uri()) as api, PacedInput(source, 1) as records:
        body = {
            "name": "rescaled",
            "spec": {
                "artifact_id": program(api, 0),
                "parallelism": parallelisms[-1],
                "parallelism_limit": max(parallelisms),
                "rescale_mode": mode,
                **job_settings(source, output, ttl_hours=24),
            },
        }
        job = api.post("/v1/jobs", body)["id"]
        start(api, job)
        made = [_rescaled(api, job, mode, parallelism) for parallelism in parallelisms]
        expected = records.end() * NEW_PER_FILE + 1  # all repeated ids are one id
        end(api, job, output, expected)
    held = [change["held_ms"] for change in made if change["held_ms"] is not None]
    return {
        "pause_ms": statistics.median(change["downtime_ms"] for change in made),
        "done_ms": statistics.median(change["duration_ms"] for change in made),
        "held_ms": statistics.median(held) if held else 0,
        "output_rows": rows(output),
        "expected_rows": expected,
    }


def _rescaled(api: Any, job: str, mode: str, parallelism: int) -> Mapping[str, Any]:
    """Rescales after a checkpoint of the present attempt."""
    wait_for_checkpoint(api, job)
    accepted = api.post(job_path(job, "rescale"), {"parallelism": parallelism})
    change: Mapping[str, Any] = follow(api, accepted["id"])
    if change["status"] != "COMPLETED" or change["rescale_mode"] != mode or change["downtime_ms"] is None:
        raise ChangeFailedError(f"the rescale ended as {change['status']}: {change['failure']} {change['not_live']}")
    return change
