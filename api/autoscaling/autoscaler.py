"""Decides about the parallelism of jobs, and rescales jobs."""

from __future__ import annotations

import logging
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import OperationalError

from keyscale.db.models import ScalingDecision
from keyscale.db.models.operation import AUTOSCALER
from keyscale.db.repositories import attempts, events, jobs, scaling
from keyscale.vocabulary import AttemptStage, AutoscalerMode, DriverState, Role, ScalingOutcome, ScalingVerdict

from ..access.principal import Principal
from ..database_clock import shared_now_ms
from ..errors import ApiError, LeadershipLostError
from ..maintenance.leader_thread import LeaderThread
from ..operations.operation_requests import begin_rescale
from .decision import REMEMBERED_MS, decide
from .key_group_division import division_by_size
from .observation import DAY_MS, PEAK_MS, RATE_MS, facts_of, is_under_way, outcome_of, settings_of, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.repositories.scaling import PastDecision, ScaledJob

    from ..control_plane.context import Context
    from ..lifecycle.leadership import Leadership
    from .decision import Decision
    from .facts import Effect, ScalingFacts

logger = logging.getLogger(__name__)

POLL_S = 15.0
_AUTOSCALER = Principal(AUTOSCALER, AUTOSCALER, Role.ADMIN)
_QUIET = frozenset(
    {
        ScalingVerdict.STEADY,
        ScalingVerdict.COOLING_DOWN,
        ScalingVerdict.WARMING_UP,
        ScalingVerdict.NOT_RUNNING,
    }
)
"""The verdicts that cause no event."""


class Autoscaler(LeaderThread):
    """A thread that decides about all jobs with an autoscaler.

    It may be killed between any two lines: a decision is stored with the rescale that it begins.

    Args:
        context: The control plane.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        super().__init__("autoscaler", POLL_S, sessions=context.sessions, pulse=context.pulse)

    def poll(self, leadership: Leadership) -> None:
        """Decides once about each job.

        Raises:
            LeadershipLostError: Another replica leads and continues.
        """
        at_ms = shared_now_ms()
        with leadership.transaction() as session:
            found = scaling.scaled_jobs(session)
            if not found:
                return
            ids = [job.id for job in found]
            loads = scaling.loads(session, ids, at_ms - PEAK_MS - RATE_MS)
            past = scaling.recent(session, ids, at_ms - REMEMBERED_MS)
            core_ms = scaling.core_ms(session, ids, at_ms - at_ms % DAY_MS, at_ms)
            divisions = {job.id: division_by_size(session, job) for job in found}
        most = self._context.settings.job_limits.parallelism_max
        for job in found:
            known = past.get(job.id, ())
            if is_under_way(known):
                continue
            try:
                facts = facts_of(
                    job,
                    loads.get(job.id, ()),
                    known,
                    core_ms=core_ms.get(job.id, 0),
                    parallelism_max=most,
                    at_ms=at_ms,
                    division=divisions[job.id],
                )
                self._follow(leadership, job, facts, known)
            except (LeadershipLostError, OperationalError):
                raise
            except Exception:  # drivers decide what they report; a failing job must not keep other jobs from scaling
                logger.exception("a defect; job %s stays as it is", job.id)

    def work(self, leadership: Leadership) -> bool:
        self.poll(leadership)
        return False

    def _follow(
        self, leadership: Leadership, job: ScaledJob, facts: ScalingFacts, past: Sequence[PastDecision]
    ) -> None:
        """Stores a decision, and carries a move out."""
        decision, refusal = decide(facts), None
        if decision.is_move and settings_of(job.spec).mode is AutoscalerMode.ACTIVE:
            try:
                with leadership.transaction() as session:
                    self._store(session, job, facts, decision, past, moves=True)
            except ApiError as error:  # the job is being changed, or limits have changed: later
                logger.info("job %s is not rescaled now: %s", job.id, error)
                refusal = f"The rescale was refused: {error}"
            else:
                self._context.metrics.count("autoscaler_moves", decision.verdict)
                self._context.wakeup.ring()
                return
        with leadership.transaction() as session:
            self._store(session, job, facts, decision, past, refusal=refusal)

    @staticmethod
    def _want_sleep(session: Session, job: ScaledJob, at_ms: int, decision: Decision) -> None:
        """Stores whether the driver of a job shall sleep.

        The next heartbeat tells the driver.
        """
        is_wanted = decision.verdict is ScalingVerdict.SLEEP and settings_of(job.spec).mode is AutoscalerMode.ACTIVE
        active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
        if active is None or active.driver_state == DriverState.SLEEPING:
            return
        if is_wanted != (active.sleep_requested_at_ms is not None):
            active.sleep_requested_at_ms = at_ms if is_wanted else None

    def _store(
        self,
        session: Session,
        job: ScaledJob,
        facts: ScalingFacts,
        decision: Decision,
        past: Sequence[PastDecision],
        *,
        moves: bool = False,
        refusal: str | None = None,
    ) -> None:
        row = jobs.lock(session, job.id)
        if row is None or row.revision != job.revision:  # deleted, or changed, since the facts were read
            return
        self._want_sleep(session, job, facts.at_ms, decision)
        _settle(session, job.id, facts.at_ms, decision, past)
        latest = past[0] if past else None
        columns = _columns(facts, decision) | ({} if refusal is None else {"advice": refusal})
        if not moves and latest is not None and _is_same(latest, decision):
            scaling.confirm(session, latest.id, facts.at_ms, **columns)
            return
        operation_id = None
        if moves:
            operation = begin_rescale(
                self._context,
                session,
                row,
                _AUTOSCALER,
                uuid.uuid4().hex,
                decision.target,
                message=f"autoscaler: {decision.message}",
            )
            operation_id = operation.id
        scaling.record(
            session,
            ScalingDecision(
                job_id=job.id,
                at_ms=facts.at_ms,
                confirmed_at_ms=facts.at_ms,
                verdict=decision.verdict,
                parallelism=decision.parallelism,
                target=decision.target,
                operation_id=operation_id,
                outcome=_first_outcome(decision) if moves else None,
                **columns,
            ),
        )
        is_known = any(each.verdict is decision.verdict and each.target == decision.target for each in past)
        if moves or (decision.verdict not in _QUIET and not is_known):
            said = f"{decision.verdict}: {decision.message}"
            _tell(session, job.id, facts.at_ms, kind="SCALING_DECIDED", message=said, operation_id=operation_id)


def _first_outcome(decision: Decision) -> ScalingOutcome:
    """Returns the outcome of a move that begins.

    A move into the limits, and the return from a move, promise nothing that could be measured.
    """
    promises = decision.present is not None and decision.verdict is not ScalingVerdict.UNDO
    return ScalingOutcome.PENDING if promises else ScalingOutcome.DELIVERED


def _settle(session: Session, job_id: str, at_ms: int, decision: Decision, past: Sequence[PastDecision]) -> None:
    """Stores what has become of the last move, once it is known."""
    pending = next((each for each in past if each.outcome is ScalingOutcome.PENDING), None)
    if pending is None:
        return
    failed = outcome_of(pending)
    outcome = failed if failed is not ScalingOutcome.PENDING else decision.outcome
    if outcome is None:
        return
    is_measured = outcome in {ScalingOutcome.DELIVERED, ScalingOutcome.NOT_DELIVERED}
    measured = _shown(decision.present) if is_measured else None
    scaling.settle(session, pending.id, outcome, measured)
    told = outcome.replace("_", " ").lower()
    message = f"the move from {pending.parallelism} to {pending.target}: {told}"
    if measured is not None:
        message += f"; the job can process {measured['capacity']:,.0f} records per second"
    _tell(session, job_id, at_ms, kind="SCALING_MEASURED", message=message, operation_id=pending.operation_id)


def _columns(facts: ScalingFacts, decision: Decision) -> dict[str, Any]:
    known = facts.batch_limit if decision.present is None else decision.batch_limit
    return {
        "message": decision.message,
        "advice": decision.advice,
        "facts": shown(facts) | {"batch_limit": known},
        "present": _shown(decision.present),
        "expected": _shown(decision.expected),
    }


def _shown(effect: Effect | None) -> dict[str, Any] | None:
    return None if effect is None else {name: round(value, 4) for name, value in asdict(effect).items()}


def _is_same(latest: PastDecision, decision: Decision) -> bool:
    """Returns whether a decision only confirms the latest one."""
    is_advice = latest.operation_id is None
    return is_advice and (latest.verdict, latest.parallelism, latest.target) == (
        decision.verdict,
        decision.parallelism,
        decision.target,
    )


def _tell(session: Session, job_id: str, at_ms: int, *, kind: str, message: str, operation_id: str | None) -> None:
    details = {} if operation_id is None else {"operation_id": operation_id}
    events.record(session, job_id=job_id, at_ms=at_ms, kind=kind, actor=AUTOSCALER, message=message, **details)
