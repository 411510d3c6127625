"""The main job on a few real reports, fed by the test itself, which so decides what arrives when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.feeder import write_atomically
from keyscale.deploy.demo.published_output import PublishedOutput, read_rows
from keyscale.deploy.demo.reference import compare
from keyscale.deploy.demo.reports import delivered, departure_reports, plan_deliveries
from keyscale.installation import EXAMPLES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.deploy.demo.reference import Check
    from tests.support.control_plane.running_control_plane import RunningControlPlane

SCRIPT = EXAMPLES / "flights.py"
SEED = 11
STEP_TIMEOUT_S = 300.0


class FlightsJob:
    """One job of the flights example and its input and output."""

    def __init__(
        self,
        control_plane: RunningControlPlane,
        *,
        reports: int = 12_000,
        files: int = 24,
        data: Path | None = None,
    ) -> None:
        self.control_plane = control_plane
        self.reports = departure_reports(reports)
        data = data or control_plane.home / "data"
        self.input = data / "input"
        self.output = data / "output"
        self.input.mkdir(parents=True)
        self._deliveries = plan_deliveries(reports, files, SEED)
        self._next_file = 0
        self._published = PublishedOutput(self.output)
        self.id = ""

    @property
    def files_left(self) -> int:
        return len(self._deliveries) - self._next_file

    def create(
        self,
        *,
        parallelism: int,
        max_parallelism: int | None = None,
        name: str = "flights",
        restart: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        artifact = upload_file(self.control_plane.api, SCRIPT)
        body: dict[str, Any] = {
            "name": name,
            "spec": {
                "artifact_id": artifact["id"],
                "parallelism": parallelism,
                "parameters": {"input": str(self.input), "output": str(self.output), "files_per_batch": "2"},
                "checkpoints": {"interval_ms": 1000},
                **settings,
            },
        }
        if max_parallelism is not None:
            body["spec"]["max_parallelism"] = max_parallelism
        if restart is not None:
            body["spec"]["restart"] = restart
        self.id = self.control_plane.api.post("/v1/jobs", body)["id"]

    def start(self) -> None:
        self.control_plane.api.post(job_path(self.id, "start"))
        self.wait("the job to run", lambda: self.show()["status"]["state"] == "RUNNING")

    def deliver(self, files: int) -> None:
        """Writes the next files of the delivery."""
        for delivery in self._deliveries[self._next_file : self._next_file + files]:
            name = f"reports-{self._next_file:04d}.json"
            write_atomically(self.input, name, delivered(self.reports, delivery, SEED))
            self._next_file += 1

    def deliver_and_wait(self, files: int) -> None:
        """Writes the next files and waits until some of what they hold is in the sink."""
        before = self.rows_in_sink()
        self.deliver(files)
        self.wait("new rows in the sink", lambda: self.rows_in_sink() > before)

    def rows_in_sink(self) -> int:
        return self._published.count_rows()

    def show(self) -> Any:
        return self.control_plane.api.get(job_path(self.id))

    def rescale(self, parallelism: int) -> str:
        """Asks for a rescale and returns its id."""
        accepted = self.control_plane.api.post(job_path(self.id, "rescale"), {"parallelism": parallelism})
        return str(accepted["id"])

    def show_rescale(self, rescale_id: str) -> Any:
        return self.control_plane.api.get(f"/v1/operations/{rescale_id}")

    def wait(self, what: str, observe: Callable[[], Any], timeout: float = STEP_TIMEOUT_S) -> Any:
        """Waits, and says what the job was doing if it waited without success."""
        try:
            return wait_until(observe, timeout, what=what)
        except AssertionError as error:
            job = self.show()
            log = (
                self.control_plane.api.get(job_path(self.id, "logs"), tail_bytes=4000)
                if job["status"]["attempt"]
                else {}
            )
            error.add_note(f"the job is {job['status']['state']}: {job['status']['failure']}\n{log.get('text', '')}")
            raise

    def delivered_reports(self) -> list[dict[str, Any]]:
        """The reports that were delivered so far, once each."""
        return [self.reports[index] for delivery in self._deliveries[: self._next_file] for index in delivery.first]

    def finish(self) -> None:
        """Delivers what is left, lets the job drain, and waits for its end."""
        self.deliver(self.files_left)
        self.drain()

    def drain(self) -> None:
        """Lets the job process what was delivered, and waits for its end."""
        self.control_plane.api.post(job_path(self.id, "drain"))
        self.wait("the job to finish", lambda: self.show()["status"]["state"] == "FINISHED")

    def wrong_checks(self) -> list[Check]:
        """Compares the sink with the reference; empty when every number is exactly right."""
        rows = read_rows(self.output)
        return [check for check in compare(self.delivered_reports(), rows) if not check.holds]
