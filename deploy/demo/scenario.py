"""How the demo goes: how much is delivered, how fast, and at which moments what is done to the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """One course of the demo. Moments are shares of all reports that are in the sink by then.

    The feeder is held back at the `holds` until the disturbance before each is over: so that on a slow machine, too, there is
    input before, during and after each of them.

    Attributes:
        reports: How many reports, the earliest ones; None for all 336,776.
        files: In how many files they are first delivered.
        seconds: How long the delivery takes.
        seed: Which reports are delivered twice, and when.
        checkpoint_interval_ms: Between the starts of two checkpoints.
        parallelism: The job's first.
        kill_at: When its driver is killed.
        rescales: When it is rescaled, and to which parallelism.
        holds: Shares of the files at which the feeder waits for the kill, then for each rescale.
        step_timeout_s: How long any one step may take before the demo gives up.
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
