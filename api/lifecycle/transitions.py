"""A job's statuses: their transitions, and the actions that they allow."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from keyscale.vocabulary import SETTLED, JobStatus, OperationKind

from ..errors import ApiError

if TYPE_CHECKING:
    from keyscale.db.models import Job

# A job that is meant to run may lose its driver, be cancelled or fail in any of these statuses.
_ALWAYS = frozenset({JobStatus.RESTARTING, JobStatus.STOPPING, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED})

TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset({JobStatus.SUBMITTING}),
    JobStatus.SUBMITTING: _ALWAYS | {JobStatus.RUNNING, JobStatus.SLEEPING, JobStatus.SAVEPOINTING},
    JobStatus.RUNNING: _ALWAYS | {JobStatus.SLEEPING, JobStatus.SAVEPOINTING, JobStatus.RESCALING, JobStatus.UPGRADING},
    JobStatus.SLEEPING: _ALWAYS | {JobStatus.RUNNING, JobStatus.SAVEPOINTING, JobStatus.RESCALING, JobStatus.UPGRADING},
    JobStatus.SAVEPOINTING: _ALWAYS | {JobStatus.RUNNING, JobStatus.SLEEPING},
    JobStatus.STOPPING: _ALWAYS | {JobStatus.SAVEPOINTING},
    JobStatus.RESCALING: _ALWAYS | {JobStatus.RUNNING, JobStatus.SLEEPING},
    JobStatus.UPGRADING: _ALWAYS | {JobStatus.RUNNING, JobStatus.SLEEPING},
    JobStatus.RESTARTING: _ALWAYS
    | {JobStatus.RUNNING, JobStatus.SLEEPING, JobStatus.SAVEPOINTING, JobStatus.UPGRADING},
    JobStatus.STOPPED: frozenset({JobStatus.SUBMITTING}),
    JobStatus.FAILED: frozenset({JobStatus.SUBMITTING}),
    JobStatus.FINISHED: frozenset({JobStatus.SUBMITTING}),
}


class TransitionError(ApiError):
    """A job was about to enter a forbidden status: a defect."""

    code = "JOB_TRANSITION_INVALID"
    title = "A job was about to enter a status that cannot follow its present one"


class Action(StrEnum):
    """The actions, besides operations, that a job's status allows or refuses."""

    UPGRADE_LAST_STATE = "upgrade from the last state"
    ADJUST = "change settings"
    DELETE = "delete"
    CHANGE_STATE = "change state"


_UP = frozenset({JobStatus.RUNNING, JobStatus.SLEEPING})

_ALLOWED: dict[Action, frozenset[JobStatus]] = {
    Action.UPGRADE_LAST_STATE: _UP | {JobStatus.RESTARTING},
    Action.ADJUST: _UP | {JobStatus.SUBMITTING, JobStatus.RESTARTING},
    Action.DELETE: SETTLED,
    Action.CHANGE_STATE: SETTLED,
}


def is_allowed(action: OperationKind | Action, status: JobStatus) -> bool:
    """Returns whether a job's status allows an action."""
    return status in (action.traits.allowed if isinstance(action, OperationKind) else _ALLOWED[action])


def what_helps(action: OperationKind | Action, status: JobStatus, job: str) -> str:
    """Returns what helps a user with an action that is refused.

    Args:
        action: An action that the status does not allow.
        status: The job's status.
        job: The job's name.
    """
    command = "`./keyscale jobs {} " + job + "{}`"
    if status in SETTLED:
        return f"it does not run; {command.format('start', ' --wait')} starts it"
    if status in {JobStatus.SAVEPOINTING, JobStatus.STOPPING}:
        return f"{command.format('wait', ' --for STOPPED')} returns when it has stopped"
    if action in {OperationKind.UPGRADE, OperationKind.ROLLBACK} and status is JobStatus.RESTARTING:
        return f"{command.format('update', ' --upgrade-mode last-state')} needs no savepoint"
    is_asleep = status is JobStatus.SLEEPING
    if action is OperationKind.START:
        asleep = f"it wakes when its sources have records; {command.format('restart', ' --wait')} wakes it now"
        started = f"it has been started; {command.format('wait', '')} returns when it is RUNNING"
        return asleep if is_asleep else started
    if action in {Action.DELETE, Action.CHANGE_STATE}:
        how = "at once" if is_asleep else f"with a savepoint, {command.format('cancel', ' --wait')} immediately"
        return f"{command.format('stop', '')} stops it {how}"
    return f"{command.format('wait', '')} returns when it is RUNNING; then send the request again"


def may_follow(status: JobStatus, following: JobStatus) -> bool:
    """Returns whether a job may go from one status to another."""
    return following == status or following in TRANSITIONS[status]


def enter(job: Job, status: JobStatus) -> None:
    """Sets a job's status.

    Raises:
        TransitionError: The status cannot follow the present one.
    """
    if not may_follow(job.status, status):
        raise TransitionError(f"{status} cannot follow {job.status}")
    job.status = status
