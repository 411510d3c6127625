"""Tells current reports of drivers from outdated ones."""

from __future__ import annotations

from typing import Protocol

from keyscale.vocabulary import AttemptStage, DriverState

SILENT_MS = 15_000
"""The metrics of a driver that has been silent for longer are outdated."""


class ReportingAttempt(Protocol):
    """An attempt of the database, or of an answer."""

    @property
    def stage(self) -> AttemptStage: ...

    @property
    def driver_state(self) -> str | None: ...

    @property
    def heartbeat_at_ms(self) -> int | None: ...


def reports_now(attempt: ReportingAttempt, *, now_ms: int) -> bool:
    """Returns whether an attempt runs its job with a current report."""
    return (
        attempt.stage is AttemptStage.ACTIVE
        and attempt.driver_state in {DriverState.RUNNING, DriverState.SLEEPING}
        and now_ms - (attempt.heartbeat_at_ms or 0) < SILENT_MS
    )
