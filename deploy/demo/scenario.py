"""The scenarios of the demo: input, and disturbances of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .reports import departure_reports, plan_deliveries


@dataclass(frozen=True, slots=True)
class Scenario:
    """The input of a demo, and the start of its job.

    Attributes:
        reports: The number of reports, the earliest ones; None for all 336,776.
        files: The number of files of the first deliveries.
        seconds: The duration of the delivery.
        seed: Selects the reports that are delivered twice, and when.
        checkpoint_interval_ms: The time between the starts of two checkpoints.
        parallelism: The parallelism with which the job starts.
        step_timeout_s: The longest time for one step.
    """

    reports: int | None = None
    files: int = 60
    seconds: float = 65.0
    seed: int = 7
    checkpoint_interval_ms: int = 2000
    parallelism: int = 2
    step_timeout_s: float = 300.0

    def totals(self) -> dict[str, int]:
        """Returns the number of files that the feeder delivers."""
        reports = len(departure_reports(self.reports))
        return {"files delivered": len(plan_deliveries(reports, self.files, self.seed))}

    def delivery(self, reports: int) -> str:
        """Returns a sentence about the feeder's delivery."""
        return f"the feeder delivers {reports:,} reports over {self.seconds:.0f} s, a tenth twice"

    def specification(self, artifact_id: str, parameters: dict[str, str]) -> dict[str, Any]:
        """Returns the job's specification, for the request that creates it."""
        return {
            "artifact_id": artifact_id,
            "parallelism": self.parallelism,
            "parameters": parameters,
            "checkpoints": {"interval_ms": self.checkpoint_interval_ms, "retained_count": 3},
        }


@dataclass(frozen=True, slots=True)
class RescaleScenario(Scenario):
    """A job with a killed driver and rescales.

    A moment is the share of all reports that are in the sink. At each of the `holds` the feeder waits until the
    previous disturbance is over. So even a slow machine has input before, during and after each disturbance.

    Attributes:
        kill_at: The moment of the driver's kill.
        rescales: The moment and the new parallelism of each rescale.
        holds: Shares of the files at which the feeder waits for the kill, then for each rescale.
    """

    kill_at: float = 0.12
    rescales: tuple[tuple[float, int], ...] = ((0.35, 4), (0.65, 1))
    holds: tuple[float, ...] = (0.3, 0.6, 0.9)


@dataclass(frozen=True, slots=True)
class UpgradeScenario(Scenario):
    """A job with new programs and a clone.

    Each share is of all files, and so of all reports. Up to each share the feeder delivers at its pace, and some files
    more in each phase of a change. So even a slow machine has input before, during and after each change.

    Attributes:
        upgrade_at: The share in the sink when version 2 is planned and applied.
        delivered: The shares up to which the feeder continues by itself before version 2, during the change to it,
            during the change to version 3, and while the clone starts.
        files_per_phase: The number of files delivered at the end of each phase of a change.
        clone_parallelism: The parallelism of the clone.
    """

    upgrade_at: float = 0.12
    delivered: tuple[float, float, float, float] = (0.25, 0.45, 0.65, 0.9)
    files_per_phase: int = 1
    clone_parallelism: int = 3
