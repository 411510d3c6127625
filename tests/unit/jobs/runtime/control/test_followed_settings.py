"""The settings that a job follows are replaced as a whole, before anybody learns that they have changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from keyscale.jobs.protocol.messages import CheckpointSettings, FailureHistory, FixedDelayRestart, LiveSettings
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.control.followed_settings import FollowedSettings
from keyscale.jobs.runtime.driver.restarts import Restarts

BEFORE, AFTER = FixedDelayRestart(attempts=1, delay_ms=10), FixedDelayRestart(attempts=2, delay_ms=20)


def assigned(status: DriverStatus) -> FollowedSettings:
    assignment = SimpleNamespace(
        revision=3, checkpoints=CheckpointSettings(interval_ms=500), restart=BEFORE, batch_interval_ms=40
    )
    return FollowedSettings(cast("Any", assignment), status)


def test_the_settings_of_the_assignment_apply_until_others_are_sent() -> None:
    status = DriverStatus()
    settings = assigned(status)
    checkpoints = CheckpointSettings(interval_ms=500)
    assert settings.newest == LiveSettings(revision=3, checkpoints=checkpoints, restart=BEFORE, batch_interval_ms=40)
    assert status.heartbeat().revision == 3


def test_a_driver_shows_the_strategy_that_it_follows_from_now_on() -> None:
    status = DriverStatus()
    settings = assigned(status)
    restarts = Restarts(lambda: settings.newest.restart, FailureHistory(), status)
    settings.on_change = restarts.show
    assert status.heartbeat().metrics.restart == BEFORE
    settings.follow(LiveSettings(revision=4, restart=AFTER))
    beat = status.heartbeat()
    assert (beat.revision, beat.metrics.restart) == (4, AFTER)
    assert settings.newest == LiveSettings(revision=4, restart=AFTER), "nothing of the settings before is left"
