"""The loop that makes jobs what they are wanted to be."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.clock import now_ms
from api.errors import StoreUnavailableError
from api.lifecycle import steps
from api.lifecycle.carrying_out import carry_out
from api.lifecycle.decision import DEFAULT_TIMEOUTS, decide
from api.lifecycle.job_transaction import JobTransaction
from api.lifecycle.leadership import open_leader_connection, try_to_lead
from api.lifecycle.orders import settle_command
from api.lifecycle.reading import FactReader
from api.lifecycle.stopwatch import Stopwatch
from api.problems import is_database_away
from db.repositories import attempts, commands, jobs
from db.statuses import CommandStatus

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from api.context import Context
    from api.lifecycle.facts import Timeouts
    from api.lifecycle.steps import Step

_log = logging.getLogger(__name__)

ROUND_S = 0.2
_ELECTION_S = 1.0
_STEPS_A_ROUND_MAX = 20  # so that no job keeps the others waiting


class Reconciler:
    """Takes one step of one job at a time; may be killed between any two lines.

    Args:
        context: The control plane.
        timeouts: How long is waited for what.
    """

    def __init__(self, context: Context, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self._context = context
        self._stopwatch = Stopwatch()
        self._reader = FactReader(context.launcher, self._stopwatch, timeouts)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the loop after the step that is being taken. Drivers run on."""
        self._closing.set()
        self._context.wakeup.ring()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with contextlib.closing(open_leader_connection(self._context.engine)) as connection:
                    self._stand_for_election(connection)
                    self._stopwatch.reset()
                    while not self._closing.is_set():
                        self._round(connection)
                        self._context.wakeup.wait(ROUND_S)
            except Exception as error:  # noqa: BLE001 - the loop outlives everything; the next round reads all facts anew
                self._context.pulse.role = "down"
                if is_database_away(error):
                    _log.warning("the database does not answer; trying again")
                else:
                    _log.exception("a round has failed")
                self._closing.wait(_ELECTION_S)
        self._context.pulse.role = "down"

    def _stand_for_election(self, connection: Connection) -> None:
        while not try_to_lead(connection) and not self._closing.is_set():
            self._beat("standby")
            self._closing.wait(_ELECTION_S)
        self._beat("leader")

    def _beat(self, role: str) -> None:
        self._context.pulse.role, self._context.pulse.beat_at_s = role, time.monotonic()

    def _round(self, connection: Connection) -> None:
        self._beat("leader")
        with Session(connection) as session, session.begin():
            job_ids = jobs.ids_to_reconcile(session)
        for job_id in job_ids:
            try:
                self.pursue(connection, job_id)
            except SQLAlchemyError:
                raise
            except Exception:  # noqa: BLE001 - see below
                # One job's trouble must not keep the others from being looked after.
                _log.exception("job %s: a step has failed; it is tried again", job_id)

    def pursue(self, connection: Connection, job_id: str) -> None:
        """Takes a job's steps until there is nothing to do but wait."""
        for _ in range(_STEPS_A_ROUND_MAX):
            if self._closing.is_set():
                return
            outside = self._take_database_step(connection, job_id)
            if outside is None:
                return
            if not isinstance(outside, _Done) and not self._take_outside_step(connection, job_id, outside):
                return

    def _take_database_step(self, connection: Connection, job_id: str) -> Step | _Done | None:
        """Decides, and does what is in the database; returns a step that reaches outside of it, to be done afterwards."""
        with Session(connection, expire_on_commit=False) as session, session.begin():
            job = jobs.lock(session, job_id)
            if job is None:
                return None
            step = decide(self._reader.read(session, job))
            if step is None:
                return None
            _log.info("job %s: %s", job_id, type(step).__name__)
            if isinstance(step, (steps.Launch, steps.Kill, steps.CheckSavepoint, steps.MarkReaped)):
                return step
            carry_out(step, JobTransaction(session, job))
            return _DONE

    def _take_outside_step(self, connection: Connection, job_id: str, step: Step) -> bool:
        """Reaches out of the database; returns whether the next step can be looked for at once."""
        match step:
            case steps.Launch():
                return self._launch(connection, job_id, step.attempt)
            case steps.Kill():
                self._context.launcher.kill(job_id, step.attempt)
                return False
            case steps.MarkReaped():
                self._context.launcher.clean_up(job_id, step.attempt)
                with Session(connection) as session, session.begin():
                    if (job := jobs.lock(session, job_id)) is not None:
                        carry_out(step, JobTransaction(session, job))
                return True
            case steps.CheckSavepoint():
                return self._check_savepoint(connection, job_id, step)
            case _:
                raise TypeError(type(step).__name__)

    def _launch(self, connection: Connection, job_id: str, number: int) -> bool:
        launcher = self._context.launcher
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
            job, command = jobs.lock(session, job_id), commands.find(session, step.order)
        if job is None or command is None or command.savepoint_id is None:
            return False
        try:
            found = self._context.store.find_savepoint(job.store_url, job_id, command.savepoint_id)
        except StoreUnavailableError as error:
            _log.warning("job %s: the store does not say whether the savepoint is there: %s", job_id, error.detail)
            return False
        with Session(connection) as session, session.begin():
            job, command = jobs.lock(session, job_id), commands.find(session, step.order, lock=True)
            if job is None or command is None or command.status is not CommandStatus.IN_PROGRESS:
                return True
            if found is None:
                carry_out(step.missing, JobTransaction(session, job))
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
