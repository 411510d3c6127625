"""The loop that brings each job to the state that its user wants."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from keyscale.api.errors import StoreUnavailableError
from keyscale.api.lifecycle import steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.decision import DEFAULT_TIMEOUTS, next_step
from keyscale.api.lifecycle.fact_reader import FactReader
from keyscale.api.lifecycle.intents import settle_command
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.leadership import open_leader_connection, try_to_lead
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.clock import now_ms
from keyscale.db.engine import is_database_away
from keyscale.db.repositories import attempts, commands, jobs
from keyscale.db.statuses import CommandStatus

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from keyscale.api.launching.launcher import Launcher
    from keyscale.api.lifecycle.facts import Timeouts
    from keyscale.api.lifecycle.steps import Step
    from keyscale.api.store_check import StoreCheck

logger = logging.getLogger(__name__)

ROUND_S = 0.2
_ELECTION_S = 1.0
_STEPS_PER_ROUND_MAX = 20  # so that no job keeps the others waiting


class Wakeup:
    """Wakes the reconciler at once instead of at its next round."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Returns when rung (also if that was before this call) or after the timeout."""
        self._event.wait(timeout_s)
        self._event.clear()


@dataclass(slots=True)
class ReconcilerPulse:
    """The reconciler's sign of life, for GET /health.

    Attributes:
        role: `leader`, `standby` (another replica leads) or `down`.
        beat_at_s: Monotonic time of its last round.
    """

    role: str = "down"
    beat_at_s: float = 0.0


class Reconciler:
    """Takes one step of one job at a time; may be killed between any two lines.

    Args:
        engine: The database.
        launcher: Starts, watches and kills drivers.
        store: Answers whether a savepoint exists.
        wakeup: Wakes the reconciler.
        pulse: Shows that the reconciler lives.
        timeouts: The limits that decisions use.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        launcher: Launcher,
        store: StoreCheck,
        wakeup: Wakeup,
        pulse: ReconcilerPulse,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._engine = engine
        self._launcher = launcher
        self._store = store
        self._wakeup = wakeup
        self._pulse = pulse
        self._stopwatch = Stopwatch()
        self._reader = FactReader(launcher, self._stopwatch, timeouts)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the loop after the present step. Drivers run on."""
        self._closing.set()
        self._wakeup.ring()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with contextlib.closing(open_leader_connection(self._engine)) as connection:
                    self._stand_for_election(connection)
                    self._stopwatch.reset()
                    while not self._closing.is_set():
                        self._round(connection)
                        self._wakeup.wait(ROUND_S)
            except Exception as error:  # the loop survives every error; the next round reads all facts again
                self._pulse.role = "down"
                if is_database_away(error):
                    logger.warning("the database does not answer; trying again")
                else:
                    logger.exception("a round failed")
                self._closing.wait(_ELECTION_S)
        self._pulse.role = "down"

    def _stand_for_election(self, connection: Connection) -> None:
        while not try_to_lead(connection) and not self._closing.is_set():
            self._beat("standby")
            self._closing.wait(_ELECTION_S)
        self._beat("leader")

    def _beat(self, role: str) -> None:
        self._pulse.role, self._pulse.beat_at_s = role, time.monotonic()

    def _round(self, connection: Connection) -> None:
        self._beat("leader")
        with Session(connection) as session, session.begin():
            job_ids = jobs.ids_to_reconcile(session)
        for job_id in job_ids:
            try:
                self.pursue(connection, job_id)
            except SQLAlchemyError:
                raise
            except Exception:
                # A failure of one job must not block the others.
                logger.exception("job %s: a step failed; it is tried again", job_id)

    def pursue(self, connection: Connection, job_id: str) -> None:
        """Takes a job's steps until there is nothing to do but wait."""
        for _ in range(_STEPS_PER_ROUND_MAX):
            if self._closing.is_set():
                return
            outside = self._take_database_step(connection, job_id)
            if outside is None:
                return
            if not isinstance(outside, _Done) and not self._take_outside_step(connection, job_id, outside):
                return

    def _take_database_step(self, connection: Connection, job_id: str) -> Step | _Done | None:
        """Decides; applies a step of the database, and returns a step that reaches outside of it, to be taken later."""
        with Session(connection, expire_on_commit=False) as session, session.begin():
            job = jobs.lock(session, job_id)
            if job is None:
                return None
            step = next_step(self._reader.read(session, job))
            if step is None:
                return None
            logger.info("job %s: %s", job_id, type(step).__name__)
            if isinstance(step, (steps.Launch, steps.Kill, steps.CheckSavepoint, steps.MarkReaped)):
                return step
            apply(step, JobTransaction(session, job))
            return _DONE

    def _take_outside_step(self, connection: Connection, job_id: str, step: Step) -> bool:
        """Takes a step outside of the database; returns whether the next step can be decided at once."""
        match step:
            case steps.Launch():
                return self._launch(connection, job_id, step.attempt)
            case steps.Kill():
                self._launcher.kill(job_id, step.attempt)
                return False
            case steps.MarkReaped():
                self._launcher.clean_up(job_id, step.attempt)
                with Session(connection) as session, session.begin():
                    if (job := jobs.lock(session, job_id)) is not None:
                        apply(step, JobTransaction(session, job))
                return True
            case steps.CheckSavepoint():
                return self._check_savepoint(connection, job_id, step)
            case _:
                raise TypeError(type(step).__name__)

    def _launch(self, connection: Connection, job_id: str, number: int) -> bool:
        launcher = self._launcher
        token_sha256 = launcher.prepare(job_id, number)
        with Session(connection, expire_on_commit=False) as session, session.begin():
            job = jobs.lock(session, job_id)
            attempt = attempts.find(session, job_id, number) if job else None
            if job is None or attempt is None:
                return False
            attempt.token_sha256, attempt.launched_on = token_sha256, launcher.host
            attempt.launched_at_ms = now_ms()
        launcher.launch(job, attempt)
        return True

    def _check_savepoint(self, connection: Connection, job_id: str, step: steps.CheckSavepoint) -> bool:
        with Session(connection, expire_on_commit=False) as session, session.begin():
            job, command = jobs.lock(session, job_id), commands.find(session, step.command_id)
        if job is None or command is None or command.savepoint_id is None:
            return False
        try:
            found = self._store.find_savepoint(job.store_url, job_id, command.savepoint_id)
        except StoreUnavailableError as error:
            logger.warning("job %s: the store does not answer whether the savepoint exists: %s", job_id, error.detail)
            return False
        with Session(connection) as session, session.begin():
            job, command = jobs.lock(session, job_id), commands.find(session, step.command_id, lock=True)
            if job is None or command is None or command.status is not CommandStatus.IN_PROGRESS:
                return True
            if found is None:
                apply(step.missing, JobTransaction(session, job))
            else:
                settle_command(
                    session,
                    command,
                    status=CommandStatus.COMPLETED,
                    location=found.location,
                    checkpoint_id=found.checkpoint_id,
                )
        return True


class _Done:
    """A step was taken, and is in the database."""


_DONE = _Done()
