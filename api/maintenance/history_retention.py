"""The retention of history.

It removes old rows by policy, a few at a time.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import diagnostics, events, history, jobs, subscriptions

from .leader_thread import LeaderThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session, sessionmaker

    from ..lifecycle.leadership import Leadership
    from ..lifecycle.reconciler import ReconcilerPulse

logger = logging.getLogger(__name__)

PASS_S = 600.0
REFUSALS_KEPT = 10_000
"""How many refused requests stay as events. Any sender can cause refusals, but not push out other events."""
DELIVERIES_KEPT = 1000
"""How many deliveries of a subscription stay; of a target that is away for long, the oldest are given up."""
DIAGNOSTIC_AGE_MS = 3_600_000
"""Age of the oldest diagnostics, which may have data of jobs."""
PAUSE_S = 0.05
"""After each job: with thousands of them a pass would slow requests down for a long time."""
ROWS_AT_ONCE = 2000
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """The history that is kept.

    Attributes:
        checkpoints: Checkpoints and savepoints per job; completed snapshots always stay.
        detailed_checkpoints: How many of them keep their subtasks.
        attempts: Ended attempts per job.
        operations: Ended operations per job; operations of kept attempts stay.
        event_days: Age of the oldest events in days.
        events: The most events, without refused requests.
    """

    checkpoints: int = 1000
    detailed_checkpoints: int = 100
    attempts: int = 100
    operations: int = 1000
    event_days: int = 90
    events: int = 1_000_000


class HistoryRetention(LeaderThread):
    """A thread that removes the history outside the policy.

    It may be killed between any two lines.

    An event, HISTORY_REMOVED, reports after each pass how much it has removed.

    Args:
        sessions: The database.
        pulse: Shows whether this control plane leads, and in which epoch; only then it works.
        policy: The history to keep.
    """

    def __init__(self, sessions: sessionmaker[Session], pulse: ReconcilerPulse, policy: HistoryPolicy) -> None:
        self._policy = policy
        super().__init__("history-retention", PASS_S, sessions=sessions, pulse=pulse)

    def run(self, leadership: Leadership) -> Counter[str]:
        """Makes one pass; returns how many rows it has removed, by table.

        Raises:
            LeadershipLostError: Another replica leads and continues the pass.
        """
        policy, removed = self._policy, Counter[str]()
        with leadership.transaction() as session:
            job_ids = jobs.ids(session)
        for job_id in job_ids:
            for table, keep, remove in (
                ("attempts", policy.attempts, history.remove_attempts),
                ("operations", policy.operations, history.remove_operations),
                ("checkpoint_subtasks", policy.detailed_checkpoints, history.remove_subtasks),
                ("checkpoints", policy.checkpoints, history.remove_checkpoints),
            ):
                removed[table] += self._repeat(
                    leadership,
                    lambda session, job_id=job_id, keep=keep, remove=remove: remove(  # type: ignore[misc]
                        session, job_id, keep=keep, some=ROWS_AT_ONCE
                    ),
                )
            self.pause(PAUSE_S)
        diagnostics_before_ms = now_ms() - DIAGNOSTIC_AGE_MS
        removed["diagnostics"] += self._repeat(
            leadership,
            lambda session: diagnostics.remove_old(session, before_ms=diagnostics_before_ms, some=ROWS_AT_ONCE),
        )
        before_ms = now_ms() - policy.event_days * _DAY_MS
        removed["events"] += self._repeat(
            leadership, lambda session: history.remove_events(session, before_ms=before_ms, some=ROWS_AT_ONCE)
        )
        removed["events"] += self._repeat(
            leadership, lambda session: history.remove_most_events(session, keep=policy.events, some=ROWS_AT_ONCE)
        )
        removed["refusals"] += self._repeat(
            leadership, lambda session: history.remove_refusals(session, keep=REFUSALS_KEPT, some=ROWS_AT_ONCE)
        )
        with leadership.transaction() as session:
            removed["deliveries"] += subscriptions.remove_deliveries(session, keep=DELIVERIES_KEPT)
        _report(leadership, removed)
        return removed

    def work(self, leadership: Leadership) -> bool:
        self.run(leadership)
        return False

    def _repeat(self, leadership: Leadership, remove: Callable[[Session], int]) -> int:
        total = 0
        while not self.is_closing:
            with leadership.transaction() as session:
                gone = remove(session)
            total += gone
            if gone < ROWS_AT_ONCE:
                break
        return total


def _report(leadership: Leadership, removed: Counter[str]) -> None:
    if not removed.total():
        return
    counts = {table: number for table, number in removed.items() if number}
    told = ", ".join(f"{number} of {table}" for table, number in counts.items())
    with leadership.transaction() as session:
        events.record(
            session,
            job_id=None,
            at_ms=now_ms(),
            kind="HISTORY_REMOVED",
            message=f"removed rows by the retention of history: {told}",
            rows=counts,
        )
