"""A job's conditions: what is true of it, each with its reason.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.units import counted, duration_text
from keyscale.vocabulary import SETTLED, AttemptStage, ConditionStatus, ConditionType, DriverState, JobStatus

from ..lifecycle.current_report import SILENT_MS
from .schemas.condition import ConditionAnswer

if TYPE_CHECKING:
    from keyscale.db.repositories.overviews import LatestSnapshot
    from keyscale.vocabulary import OperationKind

    from ..health.schemas import HealthAnswer
    from .schemas.job import AttemptSummaryAnswer

_RUNS = frozenset({DriverState.RUNNING, DriverState.STOPPING})
_UNDER_WAY = {JobStatus.RESTARTING: "RECOVERY"}
"""What the platform does by itself, by the status of the job."""


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """The facts that decide a job's conditions.

    Attributes:
        status: The job's status.
        ended_at_ms: When it last ended.
        attempt: The attempt that may run the job, or else its last attempt.
        health: How well the job is.
        snapshot: The latest completed checkpoint or savepoint.
        restorable_until_at_ms: Until when the sources keep all records after it; None if unknown.
        operation: The kind of the operation in progress.
        waits_for: What the operation waits for; None if it goes on.
        failing_start: Why the start of the driver fails and is tried again; None if it goes on.
        lag_records: Records in the sources that no committed batch has; None if the sources cannot count.
        lag_before: Records that waited before the attempt.
        caught_up_at_ms: When the attempt had first caught up.
        timers_due_at_ms: When the next processing-time timer is due; None if there is none.
        at_ms: The present time.
    """

    status: JobStatus
    ended_at_ms: int | None
    attempt: AttemptSummaryAnswer | None
    health: HealthAnswer
    snapshot: LatestSnapshot | None
    restorable_until_at_ms: int | None
    operation: OperationKind | None
    lag_records: int | None
    lag_before: int | None
    caught_up_at_ms: int | None
    at_ms: int
    timers_due_at_ms: int | None = None
    waits_for: str | None = None
    failing_start: str | None = None

    @property
    def active(self) -> AttemptSummaryAnswer | None:
        """The attempt that may run the job."""
        is_active = self.attempt is not None and self.attempt.stage is AttemptStage.ACTIVE
        return self.attempt if is_active and self.status not in SETTLED else None

    @property
    def is_silent(self) -> bool:
        """Whether the driver has not been heard for a while."""
        heard_at_ms = None if self.active is None else self.active.heartbeat_at_ms
        return heard_at_ms is not None and self.at_ms - heard_at_ms >= SILENT_MS


def conditions_of(facts: ConditionFacts) -> list[ConditionAnswer]:
    """Returns one condition of each type."""
    return [_running(facts), _healthy(facts), _restorable(facts), _catching_up(facts), _progressing(facts)]


def _running(facts: ConditionFacts) -> ConditionAnswer:
    active = facts.active
    is_up = active is not None and active.driver_state in {*_RUNS, DriverState.SLEEPING}
    if active is not None and is_up and facts.is_silent:
        silent = f"the driver of attempt {active.number} is silent"
        return _condition("RUNNING", "UNKNOWN", "DRIVER_SILENT", silent, active.heartbeat_at_ms)
    if active is not None and active.driver_state in _RUNS:
        message = f"attempt {active.number} runs the job"
        return _condition("RUNNING", "TRUE", "DRIVER_RUNS", message, active.running_at_ms)
    if active is not None and active.driver_state == DriverState.SLEEPING:
        due_ms = facts.timers_due_at_ms
        timer = "" if due_ms is None else f", for its timer in {duration_text(max(0, due_ms - facts.at_ms))}"
        message = f"the job sleeps; it wakes when its sources have records{timer}, and for an operation"
        return _condition("RUNNING", "FALSE", "SLEEPING", message, active.fell_asleep_at_ms)
    if active is not None:
        state = active.driver_state or "STARTING"
        why = "" if facts.failing_start is None else f"; {facts.failing_start}"
        message = f"the driver of attempt {active.number} is {state}{why}"
        return _condition("RUNNING", "FALSE", "DRIVER_STARTS", message, active.created_at_ms)
    message = f"the job is {facts.status}"
    return _condition("RUNNING", "FALSE", facts.status, message, facts.ended_at_ms)


def _healthy(facts: ConditionFacts) -> ConditionAnswer:
    reasons = facts.health.reasons
    if not reasons:
        return _condition("HEALTHY", "TRUE", "NO_FAULT", "no fault is known", None)
    message = "; ".join(each.message for each in reasons)
    return _condition("HEALTHY", "FALSE", reasons[0].code, message, reasons[0].since_ms)


def _restorable(facts: ConditionFacts) -> ConditionAnswer:
    if facts.snapshot is None:
        return _condition(
            "RESTORABLE", "FALSE", "NO_SNAPSHOT", "the job has no completed checkpoint or savepoint", None
        )
    until_ms = facts.restorable_until_at_ms
    if until_ms is not None and facts.at_ms >= until_ms:
        message = f"the sources may have deleted records after checkpoint {facts.snapshot.id}"
        return _condition("RESTORABLE", "UNKNOWN", "RETENTION_OVER", message, until_ms)
    message = f"the job can start from checkpoint {facts.snapshot.id}"
    return _condition("RESTORABLE", "TRUE", "SNAPSHOT", message, facts.snapshot.completed_at_ms)


def _catching_up(facts: ConditionFacts) -> ConditionAnswer:
    active = facts.active
    if active is None or active.driver_state not in {DriverState.RUNNING, DriverState.SLEEPING} or facts.is_silent:
        return _condition("CATCHING_UP", "UNKNOWN", "NOT_RUNNING", "no driver reports how many records are left", None)
    if facts.caught_up_at_ms is not None:
        message = "the job has caught up since its start"
        return _condition("CATCHING_UP", "FALSE", "CAUGHT_UP", message, facts.caught_up_at_ms)
    if facts.lag_records is None:
        message = "the sources do not count the records that are left"
        return _condition("CATCHING_UP", "UNKNOWN", "NOT_COUNTED", message, None)
    message = f"{counted(facts.lag_records, 'record')} left; {facts.lag_before or 0:,} left before the start"
    return _condition("CATCHING_UP", "TRUE", "RECORDS_LEFT", message, active.restored_at_ms)


def _progressing(facts: ConditionFacts) -> ConditionAnswer:
    operation = facts.operation or _UNDER_WAY.get(facts.status)
    if operation is None:
        return _condition("PROGRESSING", "FALSE", "NO_OPERATION", "no operation changes the job", None)
    waits = "" if facts.waits_for is None else f"; it waits for the object store: {facts.waits_for}"
    message = f"the operation {operation} changes the job{waits}"
    return _condition("PROGRESSING", "TRUE", operation, message, None)


def _condition(type_: str, status: str, reason: str, message: str, since_ms: int | None) -> ConditionAnswer:
    return ConditionAnswer(
        type=ConditionType(type_), status=ConditionStatus(status), reason=reason, message=message, since_ms=since_ms
    )
