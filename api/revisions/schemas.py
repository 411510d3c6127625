"""Revisions: the immutable versions of a job's specification."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..jobs.schemas.job_spec import MaskedSpec
from ..operations.schemas.operation import OperationAnswer
from ..shapes import Answer, ListAnswer


class RevisionAnswer(Answer):
    """A revision: an immutable version of a job's specification."""

    job_id: str
    number: int
    is_current: bool
    spec: MaskedSpec
    artifact_name: str
    artifact_version: int
    created_at_ms: int
    created_by: str | None
    message: str | None
    operation: OperationAnswer | None = Field(description="The last operation to this revision from another one.")


class RevisionList(ListAnswer):
    """A job's revisions, the newest first."""

    revisions: list[RevisionAnswer]


class DifferenceAnswer(Answer):
    """One setting that differs; null for a missing value."""

    path: str
    before: Any
    after: Any


class RevisionDiffAnswer(Answer):
    """The fields in which two revisions of a job differ."""

    before: int = Field(description="Number of the revision.")
    after: int = Field(description="Number of the other revision.")
    differences: list[DifferenceAnswer]
