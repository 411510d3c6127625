"""An idle job sleeps only if its driver can tell when there is work."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.autoscaling.decision import decide
from keyscale.api.autoscaling.facts import Disturbance, Limits, ScalingFacts, SleepFacts
from keyscale.vocabulary import ScalingVerdict

MINUTE_MS = 60_000


def verdict(sleep: SleepFacts | None, **changed: Any) -> ScalingVerdict:
    return decide(idle(sleep, **changed)).verdict


def idle(sleep: SleepFacts | None, **changed: Any) -> ScalingFacts:
    known = {"rate": 0.0, "observed_ms": 10 * MINUTE_MS, "backlog": 0, **changed}
    return ScalingFacts(10_000_000, 1, 128, Limits(1, 4), sleep=sleep, **known)


def test_a_job_sleeps_after_its_time_without_input() -> None:
    assert verdict(SleepFacts(MINUTE_MS, MINUTE_MS - 1)) is ScalingVerdict.STEADY
    decided = decide(idle(SleepFacts(MINUTE_MS, MINUTE_MS)))
    assert (decided.verdict, decided.message) == (ScalingVerdict.SLEEP, "no record has arrived for 60 s")
    assert not decided.is_move


def test_a_job_that_must_not_sleep_or_has_a_backlog_stays_awake() -> None:
    assert verdict(None) is ScalingVerdict.STEADY
    assert verdict(SleepFacts(MINUTE_MS, 9 * MINUTE_MS), backlog=1) is not ScalingVerdict.SLEEP
    outage = Disturbance(ScalingVerdict.OUTAGE, "the object store does not answer")
    assert verdict(SleepFacts(MINUTE_MS, 9 * MINUTE_MS), disturbance=outage) is ScalingVerdict.OUTAGE


@pytest.mark.parametrize(
    ("sleep", "why"),
    [
        (SleepFacts(MINUTE_MS, MINUTE_MS, unwatched=None), "its driver cannot"),
        (SleepFacts(MINUTE_MS, MINUTE_MS, unwatched=["RateStreamV2"]), "kind RateStreamV2 cannot be watched"),
        (SleepFacts(MINUTE_MS, MINUTE_MS, timer_in_ms=MINUTE_MS - 1), "a timer is due in"),
    ],
)
def test_the_decision_says_why_an_idle_job_stays_awake(sleep: SleepFacts, why: str) -> None:
    decided = decide(idle(sleep))
    assert decided.verdict is ScalingVerdict.STEADY
    assert why in decided.message


def test_a_job_sleeps_until_a_distant_timer() -> None:
    assert verdict(SleepFacts(MINUTE_MS, MINUTE_MS, timer_in_ms=MINUTE_MS)) is ScalingVerdict.SLEEP
