"""The scenario of the demo: the amount and speed of its input, and the times of the kill and the rescales."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of the demo. A moment is given as the share of all reports that are in the sink.

    At each of the `holds` the feeder waits until the disturbance before it is over. So even a slow machine has input
    before, during and after each disturbance.

    Attributes:
        reports: The number of reports, the earliest ones; None for all 336,776.
        files: The number of files in which they are first delivered.
        seconds: The duration of the delivery.
        seed: Selects the reports that are delivered twice, and when.
        checkpoint_interval_ms: The time between the starts of two checkpoints.
        parallelism: The parallelism with which the job starts.
        kill_at: The moment when its driver is killed.
        rescales: The moment and the new parallelism of each rescale.
        holds: Shares of the files at which the feeder waits for the kill, then for each rescale.
        step_timeout_s: The longest time that one step may take.
    """

    reports: int | None = None
    files: int = 60
    seconds: float = 65.0
    seed: int = 7
    checkpoint_interval_ms: int = 2000
    parallelism: int = 2
    kill_at: float = 0.12
    rescales: tuple[tuple[float, int], ...] = ((0.35, 4), (0.65, 1))
    holds: tuple[float, ...] = (0.3, 0.6, 0.9)
    step_timeout_s: float = 300.0
