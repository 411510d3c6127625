"""Requests that change a job's specification."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from keyscale.jobs.protocol.specification import DURATION_MS_MAX
from keyscale.vocabulary import UpgradeMode

from ...jobs.schemas.job_spec import SpecificationChange
from ...shapes import NUMBER_MAX
from .operation import PlannedRequest

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
    upgrade_mode: Annotated[UpgradeMode, Strict(False)] = Field(
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
