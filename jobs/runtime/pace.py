"""When the next periodic checkpoint is due, and when failures are too many: decisions without effects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.wire import CheckpointSettings


@dataclass(frozen=True, slots=True)
class CheckpointPace:
    """What has happened to periodic checkpoints so far. Times are seconds of one monotonic clock.

    Attributes:
        started_at: When the last one was triggered; at first, when the job began to run.
        ended_at: When the last one ended, whatever its outcome; None before any.
        consecutive_failures: How many have failed since the last that completed.
    """

    started_at: float
    ended_at: float | None = None
    consecutive_failures: int = 0

    def due_at(self, settings: CheckpointSettings) -> float:
        """When the next one is to be triggered: the interval after the last start, and the pause after the last end."""
        by_interval = self.started_at + settings.interval_ms / 1000
        if self.ended_at is None:
            return by_interval
        return max(by_interval, self.ended_at + settings.min_pause_ms / 1000)

    def triggered(self, now: float) -> CheckpointPace:
        return replace(self, started_at=now)

    def ended(self, now: float) -> CheckpointPace:
        return replace(self, ended_at=now)

    def completed(self, now: float) -> CheckpointPace:
        return replace(self, ended_at=now, consecutive_failures=0)

    def failed(self, now: float) -> CheckpointPace:
        return replace(self, ended_at=now, consecutive_failures=self.consecutive_failures + 1)

    def has_failed_too_often(self, settings: CheckpointSettings) -> bool:
        return self.consecutive_failures > settings.tolerable_failed_checkpoints
