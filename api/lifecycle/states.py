"""A job's statuses: which may follow which, and what a user may ask for in each. Pure."""

from __future__ import annotations

from enum import StrEnum

from db.statuses import JobStatus

SETTLED = frozenset({JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED})
"""Nothing of the job runs, and nothing will until its user asks for it."""

UNSETTLED = frozenset(JobStatus) - SETTLED

# A job that is to be somewhere may lose its driver, be cancelled or fail from there.
_ALWAYS = frozenset({JobStatus.RESTARTING, JobStatus.STOPPING, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED})

TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset({JobStatus.SUBMITTING}),
    JobStatus.SUBMITTING: _ALWAYS | {JobStatus.RUNNING, JobStatus.SAVEPOINTING},
    JobStatus.RUNNING: _ALWAYS | {JobStatus.SAVEPOINTING, JobStatus.RESCALING},
    JobStatus.SAVEPOINTING: _ALWAYS | {JobStatus.RUNNING},
    JobStatus.STOPPING: _ALWAYS | {JobStatus.SAVEPOINTING},
    JobStatus.RESCALING: _ALWAYS | {JobStatus.RUNNING},
    JobStatus.RESTARTING: _ALWAYS | {JobStatus.RUNNING, JobStatus.SAVEPOINTING},
    JobStatus.STOPPED: frozenset({JobStatus.SUBMITTING}),
    JobStatus.FAILED: frozenset({JobStatus.SUBMITTING}),
    JobStatus.FINISHED: frozenset({JobStatus.SUBMITTING}),
}


class Action(StrEnum):
    """What a user may ask for."""

    START = "start"
    STOP = "stop"
    CANCEL = "cancel"
    SAVEPOINT = "take a savepoint"
    CHECKPOINT = "take a checkpoint"
    RESCALE = "rescale"
    DELETE = "delete"


_ALLOWED: dict[Action, frozenset[JobStatus]] = {
    Action.START: SETTLED,
    Action.STOP: frozenset({JobStatus.SUBMITTING, JobStatus.RUNNING, JobStatus.RESTARTING}),
    Action.CANCEL: UNSETTLED,
    Action.SAVEPOINT: frozenset({JobStatus.RUNNING}),
    Action.CHECKPOINT: frozenset({JobStatus.RUNNING}),
    Action.RESCALE: frozenset({JobStatus.RUNNING}),
    Action.DELETE: SETTLED,
}


def is_allowed(action: Action, status: JobStatus) -> bool:
    """Whether a user may ask for `action` while the job is in `status`."""
    return status in _ALLOWED[action]


def may_follow(status: JobStatus, following: JobStatus) -> bool:
    """Whether a job may go from one status to another."""
    return following == status or following in TRANSITIONS[status]
