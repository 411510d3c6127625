"""A job of the demo: its requests, its output, and waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from keyscale.client.request_paths import job_path

from .published_output import PublishedOutput
from .waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.client.keyscale import Keyscale

Observed = TypeVar("Observed")


@dataclass(slots=True)
class DemoJob:
    """A job on a running control plane.

    Attributes:
        control_plane: The job's control plane.
        id: The job's id.
        output: The directory of its sink.
        on_poll: Called at each poll of the job during a wait.
        step_timeout_s: The longest wait.
    """

    control_plane: Keyscale
    id: str
    output: Path
    on_poll: Callable[[], None]
    step_timeout_s: float
    _published: PublishedOutput = field(init=False)

    def __post_init__(self) -> None:
        self._published = PublishedOutput(self.output)

    def rows(self) -> int:
        """Returns how many rows its sink has published so far."""
        return self._published.count_rows()

    def show(self) -> Any:
        """Returns the job, as the API shows it."""
        return self.control_plane.get(job_path(self.id))

    def attempt(self) -> Any:
        """Returns its present attempt."""
        return self.show()["status"]["attempt"]

    def checkpoints(self) -> Any:
        """Returns the statistics of its checkpoints."""
        return self.control_plane.get(job_path(self.id, "checkpoints"))

    def start(self) -> None:
        """Starts the job, and waits until it runs."""
        self.control_plane.jobs.start(self.id)
        self.wait_for_status("RUNNING")

    def begin_drain(self) -> None:
        """Requests the job to process all its input and finish."""
        self.control_plane.jobs.drain(self.id)

    def drain(self) -> None:
        """Drains the job: waits until it has processed its input and finished."""
        self.begin_drain()
        self.wait_for_status("FINISHED")

    def wait_for_status(self, status: str) -> None:
        """Waits until the job has a status."""
        self.wait(f"the job to be {status}", lambda: self.show()["status"]["state"] == status)

    def wait_for_rows(self, wanted: int) -> None:
        """Waits until its sink has this many rows."""
        self.wait(f"{wanted:,} reports in the sink", lambda: self.rows() >= wanted)

    def wait(self, what: str, observe: Callable[[], Observed]) -> Observed:
        """Waits until `observe` returns a result, and returns it.

        Raises:
            DemoError: The job ended without it, or took too long.
        """

        def look() -> Observed:
            self.on_poll()
            return observe()

        return wait_for(what, look, self.show, timeout_s=self.step_timeout_s)
