"""The loop that brings each job to its desired state."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.connections import is_database_away, open_engine, session_factory
from keyscale.db.repositories import events
from keyscale.errors import KeyscaleError

from ..errors import LeadershipLostError
from .decision import DEFAULT_TIMEOUTS
from .job_worker import JobWorker
from .leadership import Candidacy, Leadership

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Engine

    from keyscale.db.repositories.job_signs import JobSign

    from ..launching.launcher import Launcher
    from ..store_check import StoreCheck
    from .facts import Timeouts
    from .job_worker import Waiting

logger = logging.getLogger(__name__)

ROUND_S = 0.2
RESTING_ROUND_S = 0.5
"""Between two rounds if all jobs rest. A request to this replica or a driver's news begins the next one at once."""
REST_S_MAX = 300.0
"""The longest time between two looks at a job that waits for news."""
UNCERTAIN_S = 1.0
"""The same for a job with unknown processes, or with a driver that has been silent for too long."""
_ELECTION_S = 1.0
SERVED_AT_ONCE_MAX = 32
_CONNECTIONS = 8  # a job has a connection only while it reads or writes, not while its drivers are started or killed
_QUARANTINE_S = 1.0
_QUARANTINE_S_MAX = 60.0


class Wakeup:
    """Wakes the reconciler before its next round."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Returns when rung or after the timeout.

        A ring before this call also counts.
        """
        self._event.wait(timeout_s)
        self._event.clear()


@dataclass(slots=True)
class ReconcilerPulse:
    """The reconciler's sign of life, for GET /health.

    Attributes:
        role: `leader`, `standby` (another replica leads) or `down`.
        beat_at_s: Monotonic time of its last round.
        epoch: Of its time as leader, while it leads.
        quarantined: How many jobs have failing steps, while it leads.
    """

    role: str = "down"
    beat_at_s: float = 0.0
    epoch: int | None = None
    quarantined: int = 0

    def beat(self, role: str, epoch: int | None = None) -> None:
        self.role, self.beat_at_s, self.epoch = role, time.monotonic(), epoch


class Reconciler:
    """Stands for election; the leader advances all jobs in parallel.

    Args:
        engine: The database. The reconciler has separate connections, which requests cannot use up.
        launcher: Starts, watches and kills drivers.
        store: Answers whether a savepoint exists.
        wakeup: Wakes the reconciler.
        pulse: Shows that the reconciler lives.
        url: Where this replica can be reached.
        timeouts: The limits that decisions use.
        starts_at_once: How many drivers start on this host at once; None: without limit.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        launcher: Launcher,
        store: StoreCheck,
        wakeup: Wakeup,
        pulse: ReconcilerPulse,
        url: str = "",
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        starts_at_once: int | None = None,
    ) -> None:
        self._engine = open_engine(engine.url, connections=_CONNECTIONS)
        self._launcher = launcher
        self._store = store
        self._wakeup = wakeup
        self._pulse = pulse
        self._url = url
        self._timeouts = timeouts
        self._starts_at_once = starts_at_once
        self._away_since_s: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the loop after the present steps. Drivers run on."""
        self._closing.set()
        self._wakeup.ring()
        self._thread.join()
        self._engine.dispose()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._stand_and_lead()
            except Exception as error:  # the loop survives every error: this replica stands for the next election
                self._pulse.role, self._pulse.epoch = "down", None
                if is_database_away(error):
                    self._away_since_s = self._away_since_s or time.monotonic()
                    logger.warning("the database does not answer; trying again")
                elif isinstance(error, LeadershipLostError):
                    logger.warning("another replica leads")
                else:
                    logger.exception("a round failed")
                self._closing.wait(_ELECTION_S)
        self._pulse.role, self._pulse.epoch = "down", None

    def _database_away_ms(self) -> int | None:
        """Returns how long the database has not answered, if it did not."""
        return None if self._away_since_s is None else round(1000 * (time.monotonic() - self._away_since_s))

    def _stand_and_lead(self) -> None:
        with contextlib.ExitStack() as stack:
            candidacy = stack.enter_context(contextlib.closing(Candidacy(self._engine, self._url)))
            epoch = candidacy.stand(self._database_away_ms())
            self._away_since_s = None
            while epoch is None and not self._closing.wait(_ELECTION_S):
                self._pulse.beat("standby")
                epoch = candidacy.stand()
            if epoch is None:
                return
            logger.info("this replica leads, in epoch %d", epoch)
            self._lead(candidacy, Leadership(session_factory(self._engine), epoch))

    def _lead(self, candidacy: Candidacy, leadership: Leadership) -> None:
        is_over = threading.Event()
        worker = JobWorker(
            leadership=leadership,
            launcher=self._launcher,
            store=self._store,
            is_closing=lambda: is_over.is_set() or self._closing.is_set(),
            timeouts=self._timeouts,
            starts_at_once=self._starts_at_once,
        )
        workers = JobWorkers(worker, leadership, self._timeouts)
        try:
            while not self._closing.is_set():
                workers.serve(candidacy.beat(leadership.epoch), self._launcher.living())
                self._pulse.beat("leader", leadership.epoch)
                self._pulse.quarantined = workers.quarantined
                self._wakeup.wait(RESTING_ROUND_S if workers.all_rest else ROUND_S)
        finally:
            is_over.set()
            candidacy.close()  # before the last steps end: another replica can lead, and they write nothing
            workers.close()


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The pause of a job with failing steps.

    Attributes:
        failures: How often in a row.
        code: Of the last error.
        until_s: Monotonic time at which it is tried again.
        version: Its version in the next round. Another version, as of a user's request, ends the pause.
    """

    failures: int
    code: str
    until_s: float
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """A job that waits for news.

    Attributes:
        waiting: What it waits for.
        version: Its version when it was looked at.
        since_s: Monotonic time at which it was looked at.
    """

    waiting: Waiting
    version: str
    since_s: float

    def is_over(
        self, sign: JobSign, living: AbstractSet[int], silent_ms: int, now_s: float, timeouts: Timeouts
    ) -> bool:
        """Returns whether the job must be looked at.

        Args:
            sign: The job's present sign.
            living: All processes of this host.
            silent_ms: How long the job's driver has given no sign of life.
            now_s: Monotonic time.
            timeouts: A silence matters when it exceeds one of these limits.
        """
        pids, rested_s = self.waiting.pids, now_s - self.since_s
        before_ms = silent_ms - 1000 * rested_s
        has_news = sign.version != self.version or (pids is not None and not pids <= living)
        is_suspended_too_long = before_ms <= timeouts.suspended_ms < silent_ms
        is_certain = pids is not None and silent_ms <= timeouts.silence_ms
        return has_news or is_suspended_too_long or rested_s >= (REST_S_MAX if is_certain else UNCERTAIN_S)


class JobWorkers:
    """Advances jobs in parallel.

    A slow launch or kill does not delay other jobs, nor does a failing job.

    A job with failing steps is quarantined, and tried again after a pause that doubles with each failure. A job that
    waits for news rests: it is looked at when its sign shows a change, when its processes have ended, or when its
    driver has been silent for too long.

    Args:
        worker: Takes the steps of jobs.
        leadership: The right to record events.
        timeouts: The limits of silence.
        monotonic: A clock in seconds.
    """

    def __init__(
        self,
        worker: JobWorker,
        leadership: Leadership,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._leadership = leadership
        self._timeouts = timeouts
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._quarantines: dict[str, Quarantine] = {}
        self._rests: dict[str, Rest] = {}
        self._jobs = 0
        self._threads = ThreadPoolExecutor(SERVED_AT_ONCE_MAX, thread_name_prefix="job")

    def serve(self, signs: Sequence[JobSign], living: AbstractSet[int]) -> None:
        """Begins to serve all jobs that are not served, quarantined or resting.

        Args:
            signs: The signs of the jobs.
            living: All processes of this host.
        """
        now_s = self._monotonic()
        with self._lock:
            rests, self._rests, self._jobs = self._rests, {}, len(signs)
            for sign in signs:
                silent_ms = self._worker.silent_ms(sign)
                quarantine, rest = self._quarantines.get(sign.id), rests.get(sign.id)
                if quarantine is not None and now_s < quarantine.until_s and quarantine.version in {None, sign.version}:
                    self._quarantines[sign.id] = replace(quarantine, version=sign.version)
                    continue
                is_served = sign.id in self._busy
                is_over = rest is None or rest.is_over(sign, living, silent_ms, now_s, self._timeouts)
                if rest is not None and (is_served or not is_over):
                    self._rests[sign.id] = rest
                elif not is_served:
                    self._busy.add(sign.id)
                    self._threads.submit(self._serve_one, sign)

    @property
    def all_rest(self) -> bool:
        """Whether every job of the last round waits for news."""
        return len(self._rests) == self._jobs

    @property
    def quarantined(self) -> int:
        """How many jobs have failing steps."""
        return len(self._quarantines)

    def close(self) -> None:
        """Waits for the steps that are being taken."""
        self._threads.shutdown(cancel_futures=True)

    def _serve_one(self, sign: JobSign) -> None:
        job_id, begun_s = sign.id, self._monotonic()
        try:
            waiting = self._worker.advance(job_id)
        except LeadershipLostError:
            logger.info("job %s: another replica leads", job_id)
        except Exception as error:  # noqa: BLE001 - a failure of one job must not reach other jobs
            self._quarantine(job_id, error)
        else:
            if waiting is not None:
                with self._lock:
                    self._rests[job_id] = Rest(waiting, sign.version, begun_s)
            if self._quarantines.pop(job_id, None) is not None:
                self._record(job_id, "JOB_TAKEN_UP", "the job's steps succeed again")
        finally:
            with self._lock:
                self._busy.discard(job_id)

    def _quarantine(self, job_id: str, error: Exception) -> None:
        before = self._quarantines.get(job_id)
        if is_database_away(error):
            logger.warning("job %s: the database does not answer", job_id)
            return
        failures = before.failures + 1 if before is not None else 1
        pause_s = min(_QUARANTINE_S * 2 ** min(failures - 1, 10), _QUARANTINE_S_MAX)
        code = error.code if isinstance(error, KeyscaleError) else type(error).__name__
        self._quarantines[job_id] = Quarantine(failures, code, self._monotonic() + pause_s)
        logger.error("job %s: a step failed; trying again in %.0f s", job_id, pause_s, exc_info=error)
        if before is None or before.code != code:
            self._record(
                job_id, "JOB_SET_ASIDE", f"a step of the job failed ({code}); it is tried again", failure_code=code
            )

    def _record(self, job_id: str, kind: str, message: str, **details: str) -> None:
        """Records an event, if the database and the leadership allow it."""
        try:
            with self._leadership.transaction() as session:
                events.record(session, job_id=job_id, at_ms=now_ms(), kind=kind, message=message, **details)
        except Exception:
            logger.warning("job %s: the event %s was not recorded", job_id, kind, exc_info=True)
