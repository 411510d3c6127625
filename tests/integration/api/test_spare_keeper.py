"""The spare keeper reads what a host may need, and starts and ends spares. Its spares are played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.launching import launcher as launching
from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.maintenance import spare_keeper
from keyscale.api.maintenance.spare_keeper import SpareKeeper
from keyscale.db.models import Attempt, Job
from keyscale.vocabulary import AttemptStage, DriverState, JobStatus

if TYPE_CHECKING:
    from keyscale.api.control_plane.context import Context
    from keyscale.api.launching.driver_start import StartPattern
    from keyscale.api.lifecycle.leadership import Leadership

pytestmark = pytest.mark.real


class PlayedSpares:
    """Spares without processes, warm at once."""

    def __init__(self) -> None:
        self.failures, self.failed_at_s = 0, 0.0
        self.patterns: dict[str, StartPattern] = {}
        self.started = 0

    def living(self) -> list[Any]:
        return [
            SimpleNamespace(name=name, pattern=pattern, is_ready=True, started_s=0.0)
            for name, pattern in self.patterns.items()
        ]

    def start(self, pattern: StartPattern) -> None:
        self.started += 1
        self.patterns[str(self.started)] = pattern

    def end(self, name: str) -> None:
        del self.patterns[name]


def test_a_spare_follows_the_job_that_started_last(
    context: Context, leadership: Leadership, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_keeper, "free_memory_bytes", lambda: 1 << 40)
    monkeypatch.setattr(launching, "_spare_of", lambda _: "")
    launcher, spares = context.launcher, PlayedSpares()
    launcher.spares = cast("Any", spares)
    keeper = SpareKeeper(context.settings, context.sessions, launcher, ReconcilerPulse())

    def look() -> list[StartPattern]:
        keeper.work(leadership)
        return list(spares.patterns.values())

    [plain] = look()
    assert look() == [plain], "one is enough"
    with context.sessions.begin() as session:
        attempt = Attempt(
            job_id=job["id"], number=1, stage=AttemptStage.ACTIVE, cause="START", parallelism=7, created_at_ms=1,
            launched_on=launcher.place, launched_at_ms=1, driver_state=DriverState.RESTORING,
        )  # fmt: skip
        session.add(attempt)
    assert look() == [plain], "the job may still take it"
    with context.sessions.begin() as session:
        attempt = session.get_one(Attempt, (job["id"], 1))
        attempt.driver_state, attempt.running_at_ms, attempt.first_commit_at_ms = DriverState.RUNNING, 1, 1
    assert look() == [], "a job with more task slots is likelier to start next"
    [wider] = look()
    assert (wider != plain, spares.started) == (True, 2)
    with context.sessions.begin() as session:
        attempt = session.get_one(Attempt, (job["id"], 1))
        attempt.stage, attempt.driver_state = AttemptStage.ENDED, DriverState.FAILED
        session.get_one(Job, job["id"]).status = JobStatus.RESTARTING
    assert look() == [wider], "the job's next driver takes it"
    with context.sessions.begin() as session:
        session.get_one(Job, job["id"]).status = JobStatus.FAILED
    assert look() == []
