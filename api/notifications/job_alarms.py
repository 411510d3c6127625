"""The alarms of a job that subscriptions are notified of.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.state.doors.objects import StoreUnavailableError
from keyscale.units import duration_text
from keyscale.vocabulary import NotificationKind

from ..health.faults import faults_of
from ..metrics.scrape import checkpoint_age_ms, health_facts, is_reported, is_wanted

if TYPE_CHECKING:
    from keyscale.db.repositories.scrapes import ObservedJob

CHECKPOINT_INTERVALS_MAX = 5
CHECKPOINT_AGE_MS_MIN = 600_000
"""A younger checkpoint is not late, however short the interval is."""
_OF_FAULTS = {
    "FAILS_REPEATEDLY": NotificationKind.RESTARTING_IN_A_LOOP,
    "RESTORABLE_SOON_OVER": NotificationKind.RESTORABLE_SOON_OVER,
    "SOURCE_RECORDS_LOST": NotificationKind.RECORDS_LOST,
    StoreUnavailableError.code: NotificationKind.STORE_AWAY,
}


def alarms_of(job: ObservedJob, at_ms: int) -> dict[NotificationKind, str]:
    """Returns the alarms of a job, each with a sentence about it."""
    if not is_wanted(job):
        return {}
    facts = health_facts(job, is_current=is_reported(job, at_ms), at_ms=at_ms)
    found: dict[NotificationKind, str] = {}
    for fault in faults_of(facts):
        if (kind := _OF_FAULTS.get(fault.code)) is not None:
            found.setdefault(kind, fault.message)
    if (age_ms := _late_checkpoint_ms(job, at_ms)) is not None:
        found[NotificationKind.CHECKPOINTS_LATE] = f"the last checkpoint is {duration_text(age_ms)} old"
    return found


def can_have_ended(job: ObservedJob, at_ms: int) -> bool:
    """Returns whether an alarm that the facts lack is over.

    A job reports no facts while its driver is replaced: its known alarms last until the new driver reports.
    """
    return not is_wanted(job) or is_reported(job, at_ms)


def _late_checkpoint_ms(job: ObservedJob, at_ms: int) -> int | None:
    """Returns the age of the last checkpoint, if it is late."""
    age_ms, interval_ms = checkpoint_age_ms(job, at_ms), (job.checkpoints or {}).get("interval_ms")
    if age_ms is None or interval_ms is None or job.running_at_ms is None:
        return None
    running_ms = at_ms - job.running_at_ms  # a job that has just been started may have an old checkpoint
    is_late = min(age_ms, running_ms) > max(CHECKPOINT_INTERVALS_MAX * interval_ms, CHECKPOINT_AGE_MS_MIN)
    return age_ms if is_late else None
