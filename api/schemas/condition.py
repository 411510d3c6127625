"""The conditions of a job, as in Kubernetes."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from .base import Answer


class ConditionType(StrEnum):
    """What a condition is about."""

    RUNNING = "RUNNING"  # a driver runs the job
    HEALTHY = "HEALTHY"  # no fault of the job is known
    RESTORABLE = "RESTORABLE"  # a snapshot from which the job can start is known
    CATCHING_UP = "CATCHING_UP"  # the sources have more records left than the job leaves usually
    PROGRESSING = "PROGRESSING"  # an operation changes the job


class ConditionStatus(StrEnum):
    """Whether a condition is fulfilled."""

    TRUE = "TRUE"
    FALSE = "FALSE"
    UNKNOWN = "UNKNOWN"


class ConditionAnswer(Answer):
    """Something that is true of a job, or is not."""

    type: ConditionType
    status: ConditionStatus
    reason: str = Field(description="Why, as a word for programs, such as the code of a failure.")
    message: str = Field(description="Why, as a sentence.")
    since_ms: int | None = Field(description="Since when; null if unknown.")
