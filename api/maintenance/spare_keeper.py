"""Keeps spare drivers for the likely starts of this host."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Job, Revision
from keyscale.db.repositories import attempts, revisions
from keyscale.vocabulary import AttemptStage, DriverState

from ..errors import ApiError
from ..job_limits import size_bytes
from ..launching.host_memory import free_memory_bytes
from ..launching.spare_choice import EndSpare, HostFacts, SpareFacts, StartSpare, likely_starts, next_spare_step
from ..libraries.job_libraries import NO_JOB_LIBRARIES, libraries_of
from ..lifecycle.store_grant import grant_of
from .leader_thread import LeaderThread

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from ..launching.driver_start import StartPattern
    from ..launching.launcher import Launcher
    from ..lifecycle.leadership import Leadership
    from ..lifecycle.reconciler import ReconcilerPulse
    from ..settings import Settings

logger = logging.getLogger(__name__)

POLL_S = 2.0
_STARTING = (DriverState.STANDBY, DriverState.RESTORING)
_FIRST_COMMIT_MS = 30_000
"""How long a spare waits for the first commit of a job that runs; a job may have no input."""
_JOBS_PER_SPARE = 4
"""How many running jobs are looked at per spare: jobs without settings share their pattern."""


class SpareKeeper(LeaderThread):
    """A thread that starts and ends spare drivers, one at a time.

    Args:
        settings: The control plane's settings.
        sessions: The database.
        launcher: Has the spares.
        pulse: Shows whether this control plane leads, as only a leader starts drivers.
    """

    def __init__(
        self, settings: Settings, sessions: sessionmaker[Session], launcher: Launcher, pulse: ReconcilerPulse
    ) -> None:
        self._settings = settings
        self._launcher = launcher
        self._patterns: dict[tuple[str, int], StartPattern | None] = {}
        self._count = settings.spare_drivers if settings.spark_master.startswith("local") else 0
        super().__init__("spare-keeper", POLL_S, sessions=sessions, pulse=pulse)

    def start(self) -> None:
        self._launcher.sweep_spares()
        if self._count:
            super().start()

    def close(self) -> None:
        if self._count:
            super().close()
        self._launcher.spares.end_all()

    def rest(self) -> None:
        self._launcher.spares.end_all()

    def work(self, leadership: Leadership) -> bool:
        with leadership.transaction() as session:
            starts = self._starts(session)
            wanted = likely_starts(self._running(session), self._plain, self._count)
        self.take_step(wanted, starts)
        return False

    def take_step(self, wanted: list[StartPattern], starts: int) -> None:
        """Takes the next step for the spares.

        Args:
            wanted: The patterns that spares should have.
            starts: How many drivers start.
        """
        spares, now_s = self._launcher.spares, time.monotonic()
        living = [
            SpareFacts(spare.name, spare.pattern, spare.is_ready, now_s - spare.started_s) for spare in spares.living()
        ]
        facts = HostFacts(
            wanted=wanted,
            spares=living,
            starts=starts,
            heap_bytes=size_bytes(self._settings.driver_memory, "KEYSCALE_DRIVER_MEMORY"),
            free_bytes=free_memory_bytes(),
            failures=spares.failures,
            failed_s=now_s - spares.failed_at_s,
        )
        match next_spare_step(facts, self._count):
            case StartSpare(pattern):
                logger.info("a spare driver starts")
                spares.start(pattern)
            case EndSpare(name, reason):
                logger.info("the spare driver %s ends: %s", name, reason)
                spares.end(name)

    def _starts(self, session: Session) -> int:
        """Counts the drivers that start, or have not committed a batch yet."""
        unstarted = attempts.list_unstarted(session, _STARTING)
        return len(unstarted) + attempts.count_uncommitted(session, now_ms() - _FIRST_COMMIT_MS)

    def _running(self, session: Session) -> list[StartPattern]:
        """Returns the patterns of running jobs, the newest start first.

        The pattern of an ended attempt is known from its run: its files may be deleted.
        """
        found = attempts.list_running(session, self._launcher.place, self._count * _JOBS_PER_SPARE)
        known, self._patterns = self._patterns, {}
        for attempt in found:
            key = attempt.job_id, attempt.number
            if key in known or attempt.stage is not AttemptStage.ENDED:
                self._patterns[key] = known[key] if key in known else self._pattern_of(session, attempt)
        return [pattern for pattern in self._patterns.values() if pattern is not None]

    def _pattern_of(self, session: Session, attempt: Attempt) -> StartPattern | None:
        job, revision = session.get_one(Job, attempt.job_id), revisions.of_attempt(session, attempt)
        granted = grant_of(job, attempts.restored_from(session, job.id))
        try:
            brought = libraries_of(session, revision.libraries)
            return self._launcher.start_of(job, revision, attempt, brought, granted).pattern
        except (ApiError, OSError) as error:
            logger.warning("job %s: no spare driver can serve it: %s", job.id, error)
            return None

    @cached_property
    def _plain(self) -> StartPattern | None:
        """The pattern of a job without settings and user, if possible."""
        if self._launcher.isolation.count:
            return None
        job = Job(id="spare", name="spare", store_url=self._settings.store_url)
        revision, attempt = Revision(spec={"artifact_id": "spare"}), Attempt(job_id="spare", number=1, parallelism=1)
        return self._launcher.start_of(job, revision, attempt, NO_JOB_LIBRARIES, grant_of(job, ())).pattern
