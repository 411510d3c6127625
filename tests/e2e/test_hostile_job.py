"""A hostile job gets nothing of the control plane's or of another job's. Real processes, with a user per job."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.request_paths import job_path
from tests.support.control_plane.command_line import done, keyscale
from tests.support.jobs.hostile_job import taken
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.control_plane.readme_job import ReadmeJob
    from tests.support.control_plane.running_control_plane import RunningControlPlane

SCRIPT = ROOT / "tests" / "support" / "jobs" / "hostile_job.py"
USERS = range(50_000, 51_000)
pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("readme"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own"),
]


class IsolatedJob:
    """A job of the hostile script, with directories that its user may write."""

    def __init__(self, control_plane: RunningControlPlane, name: str, targets: dict[str, list[Any]]) -> None:
        self.control_plane = control_plane
        self.output = control_plane.home.parent / f"{name}-output"
        self.output.mkdir()
        self.output.chmod(0o777)
        data = control_plane.home.parent / f"{name}-input"
        data.mkdir()
        (data / "1.json").write_text('{"key": "a"}\n{"key": "b"}\n')
        artifact = upload_file(control_plane.api, SCRIPT)
        body = {
            "name": name,
            "spec": {
                "artifact_id": artifact["id"],
                "secrets": [name.upper()],
                "restart": {"type": "none"},
                "checkpoints": {"interval_ms": 500},
                "parameters": {"input": str(data), "output": str(self.output), "targets": json.dumps(targets)},
            },
        }
        self.id = control_plane.api.post("/v1/jobs", body)["id"]
        control_plane.api.post(job_path(self.id, "start"))

    def wait(self) -> None:
        """Waits until its rows are published and a checkpoint is complete."""
        wait_until(self._is_done, 300, what="a checkpoint", poll=0.5)

    def _is_done(self) -> bool:
        show = self.control_plane.api.get(job_path(self.id))
        if show["status"]["state"] == "FAILED":
            log = self.control_plane.api.get(job_path(self.id, "logs"), tail_bytes=6000)["text"]
            raise AssertionError(f"{show['status']['failure']}\n{log}")
        counts = self.control_plane.api.get(job_path(self.id, "checkpoints"))["counts"]
        return bool(self.rows()) and counts["completed"] > 0

    def rows(self) -> list[dict[str, Any]]:
        parts = self.output.glob("rows/batch=*/*.json")
        return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def test_a_hostile_job_gets_nothing_of_the_control_plane_or_of_another_job(readme_job: ReadmeJob) -> None:
    control_plane, victim = readme_job.control_plane, readme_job
    victim.ensure_running()
    victim.click()
    assert httpx.get(f"{control_plane.process.connection.url}/health").json()["isolation"] == "ok"
    home, run = control_plane.home, victim.directory() / str(victim.show()["status"]["attempt"]["number"])
    targets = {
        "files": [
            *(str(home / name) for name in (".", "token", "address", "control-plane.log", "postgres")),
            *(str(home / "postgres" / name) for name in ("password", "data/PG_VERSION")),
            *(str(home / name) for name in ("runs", "store", f"store/{victim.id}")),
            *(str(run / name) for name in (".", "token", "driver.log", "work")),
            str(victim.directory() / "state"),
        ],
        "sockets": [str(home / "postgres" / ".s.PGSQL.5432")],
        "pids": [control_plane.process.pid, *(process.pid for process in victim.processes())],
    }
    assert len(targets["pids"]) > 3
    hostile = IsolatedJob(control_plane, "hostile", targets)
    hostile.wait()

    of_driver = json.loads((hostile.output / "driver.json").read_text())
    of_workers = [json.loads(row["found"]) for row in hostile.rows()]
    assert {row["key"]: row["count"] for row in hostile.rows()} == {"a": 1, "b": 1}
    for itself, found in (of_driver, *of_workers):
        assert found == []
        assert itself["uid"] in USERS
        assert itself["groups"] in ([], [itself["uid"]])
        assert itself["no_new_privileges"] == "1"
        assert itself["secrets"] == ["KEYSCALE_JOB_SECRET_HOSTILE"]
    uids = {process.uids().real for process in victim.processes()}
    assert len(uids) == 1
    assert of_driver[0]["uid"] not in uids
    bearer = {"Authorization": f"Bearer {of_driver[0]['token']}"}
    for path in ("/v1/jobs", "/v1/artifacts", job_path(victim.id), job_path(victim.id, "logs")):
        assert httpx.get(of_driver[0]["url"] + path, headers=bearer).status_code == 401, path

    # The negative control: another process of root, such as a job without a user of its own, gets all of it.
    got = "\n".join(taken(**targets))
    missed = [name for name in (*targets["files"], *targets["sockets"]) if f"{name}" not in got]
    assert missed == []
    alive = [pid for pid in targets["pids"] if psutil.pid_exists(pid)]  # Spark ends workers that were long idle
    assert len(alive) > 3
    assert all(f"/proc/{pid}/environ" in got and f"kill {pid}" in got for pid in alive)
    for arguments in (("cancel", "hostile"), ("wait", "hostile", "--for", "STOPPED"), ("delete", "hostile")):
        done(keyscale(control_plane, "jobs", *arguments))
