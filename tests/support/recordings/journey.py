"""Records a real journey for tests of the pages: `python -m tests.support.recordings.journey`.

A job runs, takes a checkpoint and a savepoint, is rescaled and upgraded, and runs on. Another job fails.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyscale.client.request_paths import job_path
from keyscale.db.connections import open_engine, session_factory
from tests.support.control_plane.bodies import with_spec
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.recordings.recorded_rows import read_rows, write_recording
from tests.support.repository import ROOT
from tests.support.servers.postgres import running_postgres
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.control_plane.running_control_plane import RunningControlPlane

FILE = Path(__file__).with_name("journey.json")
RUNNING, FAILED = "page-views", "checkout"
"""The names of the jobs: the first one runs, the second one has failed."""
_SECONDS = 900.0
_PROGRAM = ROOT / "tests" / "support" / "jobs" / "page_views_job.py"


class Journey:
    """What happens to the two jobs.

    Args:
        platform: A control plane without jobs.
        directory: A new one, for the input and the output of the jobs.
    """

    def __init__(self, platform: RunningControlPlane, directory: Path) -> None:
        self._api, self._directory = platform.api, directory
        self._files = 0

    def run(self) -> None:
        """Leaves one job running with a history, and one failed."""
        self._create(RUNNING, labels={"team": "web", "stage": "live"})
        self._api.post(job_path(RUNNING, "start"))
        self._await_batch(RUNNING)
        self._end(self._api.post(job_path(RUNNING, "savepoint"))["id"])
        self._change(self._api.post(job_path(RUNNING, "rescale"), {"parallelism": 2}))
        revision = self._api.get(job_path(RUNNING))["revision"]
        change = {"spec": {"artifact_id": self._program(RUNNING, version=2)}, "message": "rows say their version"}
        self._change(self._api.patch(job_path(RUNNING), change, if_match=f'"{revision}"'))
        self._create(FAILED, labels={"team": "shop"}, restart={"type": "none"})
        self._deliver(FAILED, "/broken")
        self._api.post(job_path(FAILED, "start"))
        self._await(lambda: self._status(FAILED) == "FAILED", "the failure of the second job")
        self._await_batch(RUNNING)

    def _create(self, name: str, **specification: Any) -> None:
        (self._directory / name).mkdir()
        places = {part: (self._directory / name / part).as_uri() for part in ("input", "output")}
        (self._directory / name / "input").mkdir()
        body = {"name": name, **with_spec(artifact_id=self._program(name), parameters=places, **specification)}
        self._api.post("/v1/jobs", body)
        self._deliver(name, "/page/0")

    def _program(self, name: str, *, version: int = 1) -> str:
        content = _PROGRAM.read_text(encoding="utf-8").replace("VERSION = 1\n", f"VERSION = {version}\n")
        return str(self._api.upload("/v1/artifacts", filename=f"{name}.py", content=content.encode())["id"])

    def _deliver(self, name: str, page: str) -> None:
        unfinished = self._directory / name / f"{self._files:04d}.json"
        views = [*(f"/page/{number % 50}" for number in range(499)), page]
        unfinished.write_text("\n".join(json.dumps({"page": each}) for each in views))
        unfinished.rename(unfinished.parent / "input" / unfinished.name)
        self._files += 1

    def _status(self, name: str) -> str:
        return str(self._api.get(job_path(name))["status"]["state"])

    def _await_batch(self, name: str) -> None:
        """Waits until two batches have read what was just delivered, so that the rates are known."""

        def read() -> int:
            return int(self._api.get(job_path(name))["metrics"]["input_records"] or 0)

        for _ in range(2):
            before = read()
            self._deliver(name, "/page/0")
            self._await(lambda before=before: read() > before, "a batch")  # type: ignore[misc]

    def _change(self, change: dict[str, Any]) -> None:
        path = f"/v1/operations/{change['id']}"

        def has_ended() -> bool:
            self._deliver(RUNNING, "/page/0")
            return bool(self._api.get(path)["status"] != "IN_PROGRESS")

        self._await(has_ended, "the end of the change")
        assert self._api.get(path)["status"] == "COMPLETED"

    def _end(self, operation_id: str) -> None:
        path = f"/v1/operations/{operation_id}"
        self._await(lambda: self._api.get(path)["status"] != "IN_PROGRESS", "the end of the savepoint")

    @staticmethod
    def _await(observe: Any, what: str) -> None:
        wait_until(observe, _SECONDS, what=what, poll=0.5)


def record() -> dict[str, Any]:
    """Returns the recording of a new journey."""
    with running_postgres() as postgres, tempfile.TemporaryDirectory(prefix="keyscale-journey-") as directory:
        with running_control_plane({"KEYSCALE_DATABASE_URL": postgres.url}) as platform:
            Journey(platform, Path(directory)).run()
            engine = open_engine(postgres.url)
            renamed = {
                str(platform.home): "/keyscale/home",
                directory: "/keyscale/journey",
            }
            with session_factory(engine).begin() as session:
                recording = read_rows(session, renamed)
            engine.dispose()
        return recording


if __name__ == "__main__":
    write_recording(FILE, record())
