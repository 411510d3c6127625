"""Revisions of a job's specification: changing, showing, comparing and returning to them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from keyscale.jobs.protocol.specification import DURATION_MS_MAX
from keyscale.vocabulary import UpgradeMode

from .base import NAME_PATTERN, NUMBER_MAX, Answer, Labels, ListAnswer, Request
from .job_spec import MaskedSpec, SpecPatch
from .operation import OperationAnswer, PlannedRequest
from .restore import RestoreRequest


class SpecificationChange(Request):
    """A change of a job's specification."""

    spec: SpecPatch
    message: str | None = Field(default=None, max_length=500, description="Why; shown with the revision.")


PLAN_FIRST = Field(
    default=True,
    description=(
        "Whether a change of a running job's program, libraries or parameters is planned first, and refused before"
        " anything stops if the job could not take over its state. Otherwise the job finds out, and goes back."
    ),
)


class UpdateRequest(SpecificationChange, PlannedRequest):
    """A change of a job's specification, and how to apply it.

    The second part is for a running job.
    """

    plan_first: bool = PLAN_FIRST
    upgrade_mode: UpgradeMode = Field(
        default=UpgradeMode.SAVEPOINT,
        description=(
            "How state is taken along. LAST_STATE: from the latest checkpoint and the log, without a savepoint, also "
            "while the job is RESTARTING. STATELESS: no state; a running job takes a savepoint for the way back."
        ),
    )
    last_state_age_ms_max: int | None = Field(
        default=None,
        ge=0,
        le=DURATION_MS_MAX,
        description=("With LAST_STATE: the maximum age of the checkpoint to continue from."),
    )
    allow_non_restored_state: bool = Field(
        default=False, description="Drop state that the new program no longer has; otherwise that is refused."
    )


class RollbackRequest(PlannedRequest):
    """Takes a job back to an earlier revision."""

    revision: int = Field(ge=1, le=NUMBER_MAX, description="Number of the revision.")
    state: Literal["SAVEPOINT", "CURRENT"] = Field(
        default="SAVEPOINT",
        description=(
            "SAVEPOINT: state and positions as of the replacement of the revision. CURRENT: the current state and"
            " positions."
        ),
    )
    allow_non_restored_state: bool = Field(default=False, description="Drop state that the revision's program lacks.")
    plan_first: bool = PLAN_FIRST


class CloneRequest(SpecificationChange, RestoreRequest):
    """A new job with another job's specification and state.

    The patch applies to the specification of the other job.
    """

    name: str = Field(pattern=NAME_PATTERN, description="Unique, as in POST /v1/jobs.")
    labels: Labels | None = Field(default=None, description="Default: the labels of the cloned job.")
    start: bool = Field(default=False, description="Start the job immediately.")


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
