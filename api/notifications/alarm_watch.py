"""Records the begin and end of each job's alarms as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.event_kinds import ALARM_ENDED, LASTING
from keyscale.db.job_scope import EVERYTHING
from keyscale.db.repositories import alarms, events, jobs, scrapes
from keyscale.vocabulary import NotificationKind

from ..database_clock import shared_now_ms
from ..health.faults import FAULT_REPORT
from ..maintenance.leader_thread import LeaderThread
from ..metrics.scrape import JOBS_MAX
from .job_alarms import alarms_of, can_have_ended

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from ..lifecycle.leadership import Leadership
    from ..lifecycle.reconciler import ReconcilerPulse

POLL_S = 15.0


class AlarmWatch(LeaderThread):
    """A thread that looks at all jobs now and then.

    It may be killed between any two lines: an alarm is stored with its event, so that another leader does not record it
    again.

    Args:
        sessions: The database.
        pulse: Shows whether this control plane leads, and in which epoch; only then it works.
    """

    def __init__(self, sessions: sessionmaker[Session], pulse: ReconcilerPulse) -> None:
        super().__init__("alarm-watch", POLL_S, sessions=sessions, pulse=pulse)

    def poll(self, leadership: Leadership) -> None:
        """Looks at all jobs once.

        Raises:
            LeadershipLostError: Another replica leads and continues.
        """
        at_ms = shared_now_ms()
        with leadership.transaction() as session:
            found = scrapes.of_scope(session, EVERYTHING, limit=JOBS_MAX, report=FAULT_REPORT)
            known = alarms.of_all_jobs(session)
        for job in found:
            present = alarms_of(job, at_ms)
            for kind, message in present.items():
                if (job.id, kind) not in known:
                    _begin(leadership, job.id, kind, message, at_ms)
            if can_have_ended(job, at_ms):
                for kind in NotificationKind:
                    if (job.id, kind) in known and kind not in present:
                        _end(leadership, job.id, kind, at_ms)

    def work(self, leadership: Leadership) -> bool:
        self.poll(leadership)
        return False


def _begin(leadership: Leadership, job_id: str, kind: NotificationKind, message: str, at_ms: int) -> None:
    with leadership.transaction() as session:
        if jobs.lock(session, job_id) is None:  # deleted meanwhile
            return
        alarms.begin(session, job_id, kind, at_ms)
        events.record(session, job_id=job_id, at_ms=at_ms, kind=kind, message=message)


def _end(leadership: Leadership, job_id: str, kind: NotificationKind, at_ms: int) -> None:
    with leadership.transaction() as session:
        if jobs.lock(session, job_id) is None:
            return
        alarms.end(session, job_id, kind)
        if kind in LASTING:
            message = f"over: {kind.replace('_', ' ').lower()}"
            events.record(session, job_id=job_id, at_ms=at_ms, kind=f"{kind}{ALARM_ENDED}", message=message)
