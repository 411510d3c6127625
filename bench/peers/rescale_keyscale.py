"""Rescales of a running deduplication, live or by a new driver.

A real control plane carries them out while records come in.
"""

from __future__ import annotations

import shutil
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.peers.commits import Commits, ordinary_gap_ms
from bench.peers.paced_job import (
    COMMITS_BEFORE,
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
    from collections.abc import Mapping, Sequence


def run(
    *, work: str, mode: str, parallelisms: Sequence[int], keys: int, restore_from: str | None, ttl_hours: int
) -> Mapping[str, Any]:
    """Starts a job at the last parallelism, and rescales it to each.

    Args:
        work: A fresh folder.
        mode: The job's `rescale_mode`.
        parallelisms: The parallelisms, in order.
        keys: UUIDs number 0 to `keys` are in the savepoint.
        restore_from: The savepoint's location, in the job's own object store; without it the state is empty at first.
        ttl_hours: How long the job remembers an id.

    Returns:
        Medians over the rescales: `pause_ms`, from the last commit before to the first one after; `done_ms`, from the
        request to the end; and `held_ms`, if rescales were live. Also `gap_ms`, the time between ordinary commits, and
        `output_rows` with the right number, `expected_rows`.

    Raises:
        ChangeFailedError: A rescale took another way or did not complete.
    """
    source, output = Path(work, "input"), Path(work, "output")
    source.mkdir()
    store_url = split_location(restore_from)[0] if restore_from else Path(work, "store").as_uri()
    with ExitStack() as stack:
        api = stack.enter_context(control_plane(Path(work, "home"), store_url))
        records = stack.enter_context(PacedInput(source, keys))
        body = {
            "name": "rescaled",
            **({"restore_from": {"location": restore_from}} if restore_from else {}),
            "spec": {
                "artifact_id": program(api, 0),
                "parallelism": parallelisms[-1],
                "parallelism_limit": max(parallelisms),
                "rescale_mode": mode,
                "max_parallelism": MAX_PARALLELISM,
                **job_settings(source, output, ttl_hours=ttl_hours),
            },
        }
        job = api.post("/v1/jobs", body)["id"]
        stack.callback(shutil.rmtree, Path(urlsplit(store_url).path, job), ignore_errors=True)  # the savepoint's store
        start(api, job)
        with Commits(lambda: len(list(output.glob("batch=*")))) as commits:
            commits.wait_for(COMMITS_BEFORE)
        gap_ms = ordinary_gap_ms(commits.times)
        made = [_rescaled(api, job, mode, parallelism) for parallelism in parallelisms]
        expected = records.end() * NEW_PER_FILE + (0 if restore_from else keys)
        end(api, job, output, expected)
    held = [change["held_ms"] for change in made if change["held_ms"] is not None]
    return {
        "pause_ms": statistics.median(change["downtime_ms"] for change in made),
        "done_ms": statistics.median(change["duration_ms"] for change in made),
        "held_ms": statistics.median(held) if held else 0,
        "gap_ms": gap_ms,
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
