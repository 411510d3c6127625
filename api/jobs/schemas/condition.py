"""The conditions of a job, as in Kubernetes."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import ConditionStatus, ConditionType

from ...shapes import Answer


class ConditionAnswer(Answer):
    """Something that is true of a job, or is not."""

    type: ConditionType
    status: ConditionStatus
    reason: str = Field(description="Why, as a word for programs, such as the code of a failure.")
    message: str = Field(description="Why, as a sentence.")
    since_ms: int | None = Field(description="Since when; null if unknown.")
