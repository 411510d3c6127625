"""A job's health: its reasons, and the score and level that follow.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.vocabulary import HealthLevel

from .faults import faults_of
from .schemas import HealthAnswer
from .slowness import slowness_of

if TYPE_CHECKING:
    from .facts import HealthFacts

CRITICAL_BELOW = 40
"""A job with a lower score is in a critical state."""


def health_of(facts: HealthFacts) -> HealthAnswer:
    """Returns a job's health."""
    reasons = sorted([*faults_of(facts), *slowness_of(facts)], key=lambda reason: -reason.severity)
    if not reasons and not facts.is_current:
        return HealthAnswer(level=HealthLevel.UNKNOWN, score=None, reasons=[])
    score = max(0, 100 - sum(reason.severity for reason in reasons))
    return HealthAnswer(level=_level(score), score=score, reasons=reasons)


def _level(score: int) -> HealthLevel:
    if score == 100:
        return HealthLevel.OK
    return HealthLevel.DEGRADED if score >= CRITICAL_BELOW else HealthLevel.CRITICAL
