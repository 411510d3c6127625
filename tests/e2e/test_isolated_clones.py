"""Jobs with users of their own start from each other's snapshots in a local store, and from nothing else of others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.client.request_paths import job_path
from keyscale.state_io import transform
from tests.support.control_plane.counts_job import KEYS, SECONDS, CountsJob
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [
    pytest.mark.real,
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own"),
]


def started_with_state(
    control_plane: RunningControlPlane, counts: CountsJob, name: str, state: dict[str, Any], claim_mode: str
) -> tuple[str, Path]:
    """Starts another job of the same program with state of the first one; returns its id and its output."""
    output = opened(counts.directory / name)
    parameters = {"input": str(counts.directory / "input"), "output": str(output)}
    made = control_plane.api.post(
        "/v1/jobs",
        {"name": name, "spec": {"artifact_id": counts.show()["spec"]["artifact_id"], "parameters": parameters}},
    )
    control_plane.api.post(job_path(name, "start"), {"restore_from": state, "claim_mode": claim_mode})
    wait_until(
        lambda: control_plane.api.get(job_path(name))["status"]["state"] == "RUNNING", SECONDS, what=f"{name} to run"
    )
    return made["id"], output


def opened(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    return directory


def test_a_job_starts_from_another_jobs_checkpoint_and_claims_its_savepoint() -> None:
    with running_control_plane({"KEYSCALE_JOB_USERS": "50000-50999"}) as control_plane:
        home = control_plane.home.parent / "jobs"
        home.mkdir(mode=0o755)
        counts = CountsJob(lambda: control_plane.api, home / "counts")
        opened(counts.output)
        counts.create(1, parallelism=2, checkpoints={"interval_ms": 1000})
        counts.deliver()
        counts.act("start")
        counts.wait_for_all()
        counts.act("stop")
        wait_until(lambda: counts.show()["status"]["state"] == "STOPPED", SECONDS, what="the stop with a savepoint")
        [savepoint] = [
            each for each in control_plane.api.get(job_path("counts", "checkpoints"))["history"] if each["is_savepoint"]
        ]
        state = {"location": savepoint["external_path"]}
        store = control_plane.home / "store"
        written = transform(savepoint["external_path"], f"{store.as_uri()}/written/savepoints/first")

        reader, of_reader = started_with_state(control_plane, counts, "reader", state, "NO_CLAIM")
        counts.deliver()
        counts.wait_for_all(of_reader, after=1)
        counts.act("start")
        counts.wait_for_all()
        owner, of_owner = started_with_state(control_plane, counts, "owner", state, "CLAIM")
        counts.wait_for_all(of_owner, after=1)

        _, of_written = started_with_state(control_plane, counts, "starter", {"location": written}, "NO_CLAIM")
        counts.wait_for_all(of_written, after=1)
        assert (store / "written").stat().st_mode & 0o777 == 0o750, "a job that starts from it may read it"
        assert (store / counts.id).stat().st_mode & 0o777 == 0o750, "its group, and nobody else"
        assert {(store / each).stat().st_mode & 0o777 for each in (reader, owner)} == {0o700}
        figures = [control_plane.api.get(job_path(name))["metrics"]["input_records"] for name in ("counts", "reader")]
        assert figures == [2 * len(KEYS), len(KEYS)], "each job counts its own"
