"""A job's health, as the API shows it."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import HealthLevel

from ..shapes import Answer


class HealthReasonAnswer(Answer):
    """Something that is wrong with a job."""

    code: str = Field(description="A word for programs; the guide to health has a table of them.")
    message: str = Field(description="What is wrong, as a sentence.")
    advice: str | None = Field(default=None, description="What helps.")
    severity: int = Field(ge=1, le=100, description="The points that it takes from the score.")
    since_ms: int | None = Field(default=None, description="Since when; null if unknown.")
    more_subtasks_help: bool = Field(default=False, description="Whether a higher parallelism helps.")


class HealthAnswer(Answer):
    """A job's health."""

    level: HealthLevel
    score: int | None = Field(description="100 without a reason, at least 0; null while no driver reports.")
    reasons: list[HealthReasonAnswer] = Field(description="What is wrong, the worst first.")
