"""A job that counts records per key, and says which version of its program did: every row of its output is known."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.errors import RefusedError
from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.feeder import write_atomically
from tests.support.control_plane.bodies import with_spec
from tests.support.drivers.driver_process import sink_rows
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.client.keyscale import Keyscale

SCRIPT = ROOT / "tests" / "support" / "jobs" / "versioned_job.py"
KEYS = [f"key-{number}" for number in range(8)]
RAISES = 3
"""The version of the program that fails on its first record."""
SECONDS = 300.0
POLL_SECONDS = 0.5


class CountsJob:
    """A job, and the input that it shares with its clones: every file has a record of each key.

    Args:
        api: Gives the connection to a control plane; another one at each call, where the last one was lost.
        directory: A new one, for programs, input and outputs.
        name: The job's.
    """

    def __init__(self, api: Callable[[], Keyscale], directory: Path, name: str = "counts") -> None:
        self._api, self.directory, self.name = api, directory, name
        self.output = directory / "out"
        self.files = 0
        self.id = ""
        (directory / "input").mkdir(parents=True)

    def create(self, version: int, *, tick_ms: int = 0, **specification: Any) -> None:
        parameters = {"input": str(self.directory / "input"), "output": str(self.output), "tick_ms": str(tick_ms)}
        body = with_spec(name=self.name, artifact_id=self.program(version), parameters=parameters, **specification)
        self.id = self._api().post("/v1/jobs", body)["id"]

    def program(self, version: int) -> str:
        """Uploads a version of the program; returns the artifact's id."""
        file = self.directory / f"counts_{version}.py"
        file.write_text(SCRIPT.read_text(encoding="utf-8").replace("VERSION = 1\n", f"VERSION = {version}\n"))
        return str(upload_file(self._api(), file)["id"])

    def act(self, action: str, body: dict[str, Any] | None = None) -> Any:
        return self._api().post(job_path(self.name, action), body)

    def show(self, name: str = "") -> Any:
        return self._api().get(job_path(name or self.name))

    def attempts(self) -> Any:
        return self._api().get(job_path(self.name, "attempts"))["attempts"]

    def update(self, version: int) -> str:
        """Asks for another version of the program; returns the change's id."""
        body = {"spec": {"artifact_id": self.program(version)}, "plan_first": False}  # tests of phases need no plan
        answer = self._api().patch(job_path(self.name), body, if_match=f'"{self.show()["revision"]}"')
        return str(answer["id"])

    def rescale(self, parallelism: int) -> str:
        return str(self.act("rescale", {"parallelism": parallelism})["id"])

    def show_change(self, change_id: str) -> Any:
        return self._api().get(f"/v1/operations/{change_id}")

    def ended(self, change_id: str) -> Any:
        """Waits until a change has ended; input comes in at each phase, and for the verification."""
        phase = ""

        def look() -> Any:
            nonlocal phase
            change = self.show_change(change_id)
            if change["status"] != "IN_PROGRESS":
                return change
            if change["phase"] != phase or (change["phase"] == "VERIFY" and self._is_complete(self.output, after=0)):
                self.deliver()
            phase = change["phase"]
            return None

        return wait_until(look, SECONDS, what="the end of the change", poll=POLL_SECONDS)

    def deliver(self) -> None:
        write_atomically(self.directory / "input", f"{self.files:04d}.json", [{"key": key} for key in KEYS])
        self.files += 1

    def rows(self, output: Path | None = None) -> list[dict[str, Any]]:
        return sink_rows(output or self.output)

    def counts(self, output: Path | None = None) -> Counter[tuple[str, int]]:
        return Counter((row["key"], row["count"]) for row in self.rows(output))

    def wait_for_all(self, output: Path | None = None, *, after: int = 0) -> None:
        """Waits until the output has as many rows as it should, and compares every one.

        Args:
            output: That of a clone; by default the job's own.
            after: The number of files whose records the output does not have.
        """
        output = output or self.output

        def look() -> bool:
            if output == self.output:
                self._assert_has_not_failed()
            return self._is_complete(output, after=after)

        wait_until(look, SECONDS, what=f"the rows of {self.files - after} files in {output}", poll=POLL_SECONDS)
        assert self.counts(output) == self._expected(after)

    def _assert_has_not_failed(self) -> None:
        with suppress(RefusedError):  # some tests wait while the control plane is away
            shown = self.show()
            assert shown["status"]["state"] != "FAILED", shown["status"]["failure"]

    def _is_complete(self, output: Path, *, after: int) -> bool:
        return self.counts(output).total() >= self._expected(after).total()

    def _expected(self, after: int) -> Counter[tuple[str, int]]:
        return Counter((key, number) for key in KEYS for number in range(after + 1, self.files + 1))
