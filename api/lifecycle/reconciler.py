"""The loop that brings each job to its desired state."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.connections import is_database_away, open_engine, session_factory
from keyscale.db.repositories import events
from keyscale.errors import KeyscaleError

from ..errors import LeadershipLostError
from .decision import DEFAULT_TIMEOUTS
from .leadership import Candidacy, Leadership
from .pursuit import Pursuit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine

    from ..launching.launcher import Launcher
    from ..store_check import StoreCheck
    from .facts import Timeouts

logger = logging.getLogger(__name__)

ROUND_S = 0.2
REST_S_MAX = 1.0
"""A running job is looked at this rarely while nothing happens. A request or a driver's news ends the rest."""
_ELECTION_S = 1.0
SERVED_AT_ONCE_MAX = 32
_CONNECTIONS = 8  # a job has a connection only while it reads or writes, not while its drivers are started or killed
_SET_ASIDE_S = 1.0
_SET_ASIDE_S_MAX = 60.0


class Wakeup:
    """Wakes the reconciler before its next round."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Returns when rung or after the timeout.

        A ring before this call also counts.

        Returns:
            Whether it was rung.
        """
        is_rung = self._event.wait(timeout_s)
        self._event.clear()
        return is_rung


@dataclass(slots=True)
class ReconcilerPulse:
    """The reconciler's sign of life, for GET /health.

    Attributes:
        role: `leader`, `standby` (another replica leads) or `down`.
        beat_at_s: Monotonic time of its last round.
        epoch: Of its time as leader, while it leads.
    """

    role: str = "down"
    beat_at_s: float = 0.0
    epoch: int | None = None

    def beat(self, role: str, epoch: int | None = None) -> None:
        self.role, self.beat_at_s, self.epoch = role, time.monotonic(), epoch


class Reconciler:
    """Stands for election; the leader pursues all jobs, side by side.

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
                    logger.warning("the database does not answer; trying again")
                elif isinstance(error, LeadershipLostError):
                    logger.warning("another replica leads")
                else:
                    logger.exception("a round failed")
                self._closing.wait(_ELECTION_S)
        self._pulse.role, self._pulse.epoch = "down", None

    def _stand_and_lead(self) -> None:
        with contextlib.ExitStack() as stack:
            candidacy = stack.enter_context(contextlib.closing(Candidacy(self._engine, self._url)))
            epoch = candidacy.stand()
            while epoch is None and not self._closing.wait(_ELECTION_S):
                self._pulse.beat("standby")
                epoch = candidacy.stand()
            if epoch is None:
                return
            logger.info("this replica leads, in epoch %d", epoch)
            self._lead(candidacy, Leadership(session_factory(self._engine), epoch))

    def _lead(self, candidacy: Candidacy, leadership: Leadership) -> None:
        is_over = threading.Event()
        pursuit = Pursuit(
            leadership=leadership,
            launcher=self._launcher,
            store=self._store,
            is_closing=lambda: is_over.is_set() or self._closing.is_set(),
            timeouts=self._timeouts,
            starts_at_once=self._starts_at_once,
        )
        jobs_served = JobsServed(pursuit.pursue, leadership)
        is_rung = True
        try:
            while not self._closing.is_set():
                jobs_served.serve(candidacy.beat(leadership.epoch), is_rung=is_rung)
                self._pulse.beat("leader", leadership.epoch)
                is_rung = self._wakeup.wait(ROUND_S)
        finally:
            is_over.set()
            candidacy.close()  # before the last steps end: another replica can lead, and they write nothing
            jobs_served.close()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A job with failing steps.

    Attributes:
        failures: How often in a row.
        code: Of the last error.
        until_s: Monotonic time at which it is tried again.
    """

    failures: int
    code: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Rest:
    """A job that waits for nothing.

    Attributes:
        pause_s: How long it rests.
        until_s: Monotonic time at which it is looked at again.
    """

    pause_s: float
    until_s: float


class JobsServed:
    """Serves jobs side by side.

    A slow launch or kill does not delay other jobs, nor does a failing job.

    A job with failing steps is quarantined, and tried again after a pause that doubles with each failure. A job that
    waits for nothing rests: it is looked at after a pause that doubles up to a second.

    Args:
        pursue: Takes a job's steps; returns whether the job may rest.
        leadership: The right to record events.
        monotonic: A clock in seconds.
    """

    def __init__(
        self,
        pursue: Callable[[str], bool],
        leadership: Leadership,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pursue = pursue
        self._leadership = leadership
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._troubles: dict[str, Trouble] = {}
        self._rests: dict[str, Rest] = {}
        self._threads = ThreadPoolExecutor(SERVED_AT_ONCE_MAX, thread_name_prefix="job")

    def serve(self, job_ids: Sequence[str], *, is_rung: bool = True) -> None:
        """Begins to serve all jobs that are not served, quarantined or resting.

        Args:
            job_ids: The jobs.
            is_rung: Whether something has happened, which ends all rests.
        """
        now_s = self._monotonic()
        with self._lock:
            known = set(job_ids)
            self._rests = {} if is_rung else {job: rest for job, rest in self._rests.items() if job in known}
            for job_id in job_ids:
                pauses = (self._troubles.get(job_id), self._rests.get(job_id))
                if job_id in self._busy or any(pause is not None and now_s < pause.until_s for pause in pauses):
                    continue
                self._busy.add(job_id)
                self._threads.submit(self._serve_one, job_id)

    def close(self) -> None:
        """Waits for the steps that are being taken."""
        self._threads.shutdown(cancel_futures=True)

    def _serve_one(self, job_id: str) -> None:
        begun_s = self._monotonic()
        try:
            may_rest = self._pursue(job_id)
        except LeadershipLostError:
            logger.info("job %s: another replica leads", job_id)
        except Exception as error:  # noqa: BLE001 - a failure of one job must not reach other jobs
            self._set_aside(job_id, error)
        else:
            self._rest(job_id, begun_s, may_rest=may_rest)
            if self._troubles.pop(job_id, None) is not None:
                self._record(job_id, "JOB_TAKEN_UP", "the job's steps succeed again")
        finally:
            with self._lock:
                self._busy.discard(job_id)

    def _rest(self, job_id: str, begun_s: float, *, may_rest: bool) -> None:
        with self._lock:
            before = self._rests.pop(job_id, None)
            if may_rest:
                pause_s = ROUND_S if before is None else min(2 * before.pause_s, REST_S_MAX)
                self._rests[job_id] = Rest(pause_s, begun_s + pause_s)

    def _set_aside(self, job_id: str, error: Exception) -> None:
        before = self._troubles.get(job_id)
        if is_database_away(error):
            logger.warning("job %s: the database does not answer", job_id)
            return
        failures = before.failures + 1 if before is not None else 1
        pause_s = min(_SET_ASIDE_S * 2 ** min(failures - 1, 10), _SET_ASIDE_S_MAX)
        code = error.code if isinstance(error, KeyscaleError) else type(error).__name__
        self._troubles[job_id] = Trouble(failures, code, self._monotonic() + pause_s)
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
