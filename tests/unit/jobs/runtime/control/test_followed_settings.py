"""The settings that a job follows are replaced as a whole, before anybody learns that they have changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from keyscale.jobs.protocol.messages import FailureHistory, LiveSettings
from keyscale.jobs.protocol.specification import CheckpointSettings, FixedDelayRestart, JobSpec
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.control.followed_settings import FollowedSettings
from keyscale.jobs.runtime.driver.restarts import Restarts

BEFORE, AFTER = FixedDelayRestart(attempts=1, delay_ms=10), FixedDelayRestart(attempts=2, delay_ms=20)


RUNNING = JobSpec(
    artifact_id="program", checkpoints=CheckpointSettings(interval_ms=500), restart=BEFORE, batch_interval_ms=40
)


def assigned(status: DriverStatus) -> FollowedSettings:
    return FollowedSettings(cast("Any", SimpleNamespace(revision=3, spec=RUNNING)), status)


def test_the_settings_of_the_assignment_apply_until_others_are_sent() -> None:
    status = DriverStatus()
    settings = assigned(status)
    assert settings.newest == LiveSettings(revision=3, spec=RUNNING)
    assert status.heartbeat().revision == 3


def test_a_driver_shows_the_strategy_that_it_follows_from_now_on() -> None:
    status = DriverStatus()
    settings = assigned(status)
    restarts = Restarts(lambda: settings.newest.spec.restart, FailureHistory(), status)
    settings.on_change = restarts.show
    assert status.heartbeat().metrics.restart == BEFORE
    sent = LiveSettings(revision=4, spec=JobSpec(artifact_id="program", restart=AFTER))
    settings.follow(sent)
    beat = status.heartbeat()
    assert (beat.revision, beat.metrics.restart) == (4, AFTER)
    assert settings.newest == sent, "nothing of the settings before is left"


def test_a_setting_that_needs_a_restart_stays_as_the_driver_runs() -> None:
    settings = assigned(DriverStatus())
    other = JobSpec(artifact_id="other", parallelism=9, checkpoints=CheckpointSettings(store_outage_max_ms=1))
    settings.follow(LiveSettings(revision=4, spec=other))
    spec = settings.newest.spec
    assert (spec.artifact_id, spec.parallelism, spec.checkpoints.store_outage_max_ms) == ("program", 1, 300_000)
    assert (spec.checkpoints.interval_ms, spec.restart, spec.batch_interval_ms) == (10_000, None, None)
