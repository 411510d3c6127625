"""Revisions of a job's specification: changing, showing, comparing and returning to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from keyscale.jobs.protocol.messages import DURATION_MS_MAX, CheckpointSettings, RestartStrategy, SecretReference

from ..libraries.library_set import LIBRARIES_MAX
from ..specification import SPECIFICATION_FIELDS
from .base import NAME_PATTERN, NUMBER_MAX, Answer, Labels, ListAnswer, OperationId, Request
from .change import ChangeAnswer, UpgradeModeName
from .job import CheckpointRequest, JobAnswer, LibraryName, MaskedParameters, SecretName
from .restore import RestoreRequest


class SpecificationChange(Request):
    """Values that replace values of a job's current specification.

    Omitted fields stay unchanged.
    """

    artifact_id: str | None = Field(default=None, description="Another program: a .py or .zip artifact.")
    libraries: list[LibraryName] | None = Field(
        default=None, max_length=LIBRARIES_MAX, description="All libraries that the program imports."
    )
    parallelism: int | None = Field(default=None, description="From 1 to the job's max parallelism.")
    parameters: dict[str, str | SecretReference | None] | None = Field(
        default=None, description="Parameters to set; null removes a parameter. Other parameters stay."
    )
    secrets: list[SecretName] | None = Field(
        default=None,
        max_length=100,
        description="All names of secrets that the script reads by `Secret(NAME)`; secrets of parameters are added.",
    )
    spark_conf: dict[str, str | None] | None = Field(
        default=None, description="Spark settings to set; null removes a setting. Other settings stay."
    )
    checkpoints: CheckpointRequest | None = Field(
        default=None, description="Settings of checkpoints to change; other settings stay."
    )
    restart: RestartStrategy | None = Field(default=None, description="null: the script's strategy, or the default.")
    batch_interval_ms: Annotated[int, Field(ge=0, le=86_400_000)] | None = Field(
        default=None, description="null: the script's value, or no minimum."
    )
    message: str | None = Field(default=None, max_length=500, description="Why; shown with the revision.")

    def given(self) -> dict[str, Any]:
        """Returns the given fields of the specification.

        A value is null only if a specification may have null.
        """
        fields = self.model_dump(exclude_unset=True, include=set(SPECIFICATION_FIELDS))
        nullable = {"restart", "batch_interval_ms"}
        return {name: value for name, value in fields.items() if value is not None or name in nullable}


PLAN_FIRST = Field(
    default=True,
    description=(
        "Whether a change of a running job's program, libraries or parameters is planned first, and refused before"
        " anything stops if the job could not take over its state. Otherwise the job finds out, and goes back."
    ),
)


class UpdateRequest(SpecificationChange):
    """A change of a job's specification, and how to apply it.

    The second part is for a running job.
    """

    change_id: OperationId | None = None
    plan_first: bool = PLAN_FIRST
    upgrade_mode: UpgradeModeName = Field(
        default="savepoint",
        description=(
            "How state is taken along. last-state: from the latest checkpoint and the log, without a savepoint, also "
            "while the job is RESTARTING. stateless: no state; a running job takes a savepoint for the way back."
        ),
    )
    last_state_age_ms_max: int | None = Field(
        default=None,
        ge=0,
        le=DURATION_MS_MAX,
        description=("With last-state: the maximum age of the checkpoint to continue from."),
    )
    allow_non_restored_state: bool = Field(
        default=False, description="Drop state that the new program no longer has; otherwise that is refused."
    )


class RollbackRequest(Request):
    """Takes a job back to an earlier revision."""

    revision: int = Field(ge=1, le=NUMBER_MAX, description="Number of the revision.")
    state: Literal["savepoint", "current"] = Field(
        default="savepoint",
        description=(
            "savepoint: state and positions as of the replacement of the revision. current: the current state and"
            " positions."
        ),
    )
    allow_non_restored_state: bool = Field(default=False, description="Drop state that the revision's program lacks.")
    plan_first: bool = PLAN_FIRST
    change_id: OperationId | None = None


class CloneRequest(SpecificationChange, RestoreRequest):
    """A new job with another job's specification and state.

    Given fields replace fields of the specification.
    """

    name: str = Field(pattern=NAME_PATTERN, description="Unique, as in POST /v1/jobs.")
    labels: Labels | None = Field(default=None, description="Default: the labels of the cloned job.")
    start: bool = Field(default=False, description="Start the job immediately.")


class RevisionAnswer(Answer):
    """A revision: an immutable version of a job's specification."""

    job_id: str
    number: int
    is_current: bool
    artifact_id: str
    artifact_name: str
    artifact_version: int
    libraries: list[str]
    parallelism: int
    parameters: MaskedParameters
    secrets: list[str] | None
    spark_conf: dict[str, str]
    checkpoints: CheckpointSettings
    restart: RestartStrategy | None
    batch_interval_ms: int | None
    created_at_ms: int
    created_by: str | None
    message: str | None
    change: ChangeAnswer | None = Field(description="The last change of the running job to this revision.")


class RevisionList(ListAnswer):
    """A job's revisions, the newest first."""

    revisions: list[RevisionAnswer]


class DifferenceAnswer(Answer):
    """One field that differs; null for a missing value."""

    field: str
    before: Any
    after: Any


class RevisionDiffAnswer(Answer):
    """The fields in which two revisions of a job differ."""

    before: int = Field(description="Number of the revision.")
    after: int = Field(description="Number of the other revision.")
    differences: list[DifferenceAnswer]


class UpdateAnswer(Answer):
    """The job with its current specification and its change.

    The change is carried out if the job runs.
    """

    job: JobAnswer
    revision: int = Field(description="Number of the revision that was asked for.")
    change: ChangeAnswer | None = Field(description="Poll it by its id; null if nothing has to be carried out.")
