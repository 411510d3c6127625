"""A trial setting is declared in one place, and everything else follows."""

from __future__ import annotations

from keyscale.jobs.protocol.specification import JobSpec, changed, differences, followed


def test_a_running_job_takes_the_trial_pause_over_without_a_restart() -> None:
    present = JobSpec(artifact_id="a")
    paused = changed(present, {"trial_pause_ms": 500})
    [difference] = differences(present, paused)
    assert (difference.path, difference.after, difference.needs_restart) == ("trial_pause_ms", 500, False)
    assert followed(present, paused).trial_pause_ms == 500
