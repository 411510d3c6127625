"""Operations: long actions on a job, of one form for all kinds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from keyscale.vocabulary import (
    KEY_GROUPS_MAX,
    ChangePhase,
    DowntimeStep,
    OperationKind,
    OperationStatus,
    RescaleMode,
    UpgradeMode,
)

from ...jobs.schemas.restore import RestoreRequest
from ...shapes import Answer, FailureAnswer, ListAnswer, OperationId, Request, example
from .change_plan import PlanAnswer

_Parallelism = Annotated[int, Field(json_schema_extra={"minimum": 1, "maximum": KEY_GROUPS_MAX})]
"""The job's own bounds are checked, so that a refusal names them."""


class OperationRequest(Request):
    """Asks for an operation."""

    id: OperationId | None = None


class PlannedRequest(OperationRequest):
    """Asks for an operation that has a plan."""

    dry_run: bool = Field(
        default=False, description="Only show the plan: nothing changes, and the operation is not stored."
    )


class StartRequest(RestoreRequest, OperationRequest):
    """How to start a job.

    The start is COMPLETED when the job has processed its first input, or has found none.
    """

    parallelism: _Parallelism | None = Field(
        default=None, description="Another parallelism, which makes a new revision. Default: the job's."
    )

    skip_lost_records: bool = Field(
        default=False,
        description=(
            "Continue without the records that a Python source has lost, such as expired records of Kafka, although"
            " the source would fail the job. Holds until the job's next start, with its restarts and rescales."
        ),
    )

    reset_time: bool = Field(
        default=False,
        description=(
            "Begin event time and processing time again, after a wrong event time or a wrong clock has moved them far"
            " into the future. State and source positions stay."
        ),
    )


class RescaleRequest(PlannedRequest):
    """Changes a running job's parallelism."""

    parallelism: _Parallelism = Field(description="From 1 to the job's max parallelism.", examples=[4])


class PhaseAnswer(Answer):
    """A phase of a change and the time it took."""

    phase: ChangePhase
    started_at_ms: int
    ended_at_ms: int | None
    duration_ms: int | None
    waits_for: FailureAnswer | None = Field(
        default=None,
        description=(
            "Why the phase waits: the object store does not answer. The change continues when the store answers. null:"
            " it does not wait, or has ended."
        ),
    )


class StepAnswer(Answer):
    """A part of the downtime of a change.

    The last part, `CAUGHT_UP`, follows the downtime.
    """

    name: DowntimeStep = Field(
        description=(
            "SAVEPOINT, STOP: of the old driver. TRIAL: of the driver of a change that is rolled back. SUBMIT, SESSION:"
            " of the new driver, if it was not ready by then."
            " RESTORE. HANDOVER: of a live rescale, from the last commit until the next attempt is open. FIRST_BATCH."
            " CAUGHT_UP: until the sources had as few records left as before the change."
        )
    )
    started_at_ms: int
    ended_at_ms: int
    duration_ms: int


class ChangeMetricsAnswer(Answer):
    """The job's metrics in its driver's last report at that time.

    null: unknown.
    """

    input_rate: float | None
    processed_rate: float | None
    busy_ratio: float | None
    batch_duration_ms: float | None
    lag_records: int | None
    lag_ms: int | None


class OperationResult(Answer):
    """The checkpoint or savepoint of an operation."""

    location: str | None = Field(default=None, description="Location of the manifest of the savepoint or checkpoint.")
    checkpoint_id: int | None = None
    discarded: bool = Field(default=False, description="Whether the savepoint or checkpoint was deleted since.")


class OperationAnswer(Answer):
    """An operation, of any kind.

    What a kind does not have is null or empty: a kind that replaces the driver, such as RESCALE, has phases, and what
    takes a checkpoint or savepoint has a result. A dry run has a plan, and no id or status.
    """

    model_config = example(
        id="nightly-2026-11-21",
        job_id="0d3b8d0e4c1a4b0f8a5c6d7e8f9a0b1c",
        kind="RESCALE",
        status="COMPLETED",
        phase="VERIFY",
        phases=[
            {
                "phase": "REQUESTED",
                "started_at_ms": 1_795_000_000_000,
                "ended_at_ms": 1_795_000_004_100,
                "duration_ms": 4100,
            }
        ],
        requested_at_ms=1_795_000_000_000,
        requested_by="ann",
        ended_at_ms=1_795_000_007_000,
        duration_ms=7000,
        downtime_ms=1800,
        from_revision=1,
        to_revision=2,
        from_parallelism=2,
        to_parallelism=4,
        old_attempt=1,
        new_attempt=2,
        result={"location": "file:///store/0d3b/savepoints/nightly-2026-11-21/manifest.json", "checkpoint_id": 7},
    )

    id: str | None = Field(description="null: a dry run.")
    job_id: str
    kind: OperationKind
    status: OperationStatus | None = Field(
        description=(
            "PENDING_APPROVAL: another user has to approve it. CANCELLED: at a user's request, and the job is as"
            " before. ROLLED_BACK: the job runs its old revision. null: a dry run."
        )
    )
    phase: ChangePhase | None = Field(default=None, description="The current phase, or the last phase.")
    phases: list[PhaseAnswer] = Field(default_factory=list, description="All phases so far, in order.")
    requested_at_ms: int
    requested_by: str | None = None
    approved_at_ms: int | None = Field(default=None, description="null: it waits for an approval, or needs none.")
    approved_by: str | None = None
    ended_at_ms: int | None = None
    duration_ms: int | None = Field(default=None, description="From the request, or from the approval, to the end.")
    downtime_ms: int | None = Field(
        default=None,
        description=(
            "From the last committed batch of the old attempt to the first committed batch of the new attempt. Without"
            " input around the change: from the command to stop to the restored state. null: not known yet, or the"
            " operation has not stopped the job."
        ),
    )
    steps: list[StepAnswer] = Field(
        default_factory=list, description="The parts of the downtime. Each step begins where the previous step ended."
    )
    prepared_ms: int | None = Field(
        default=None,
        description="How long the new driver, or in a live rescale the new subtasks, started while the job still ran.",
    )
    from_revision: int | None = None
    to_revision: int | None = None
    from_parallelism: int | None = None
    to_parallelism: int | None = None
    upgrade_mode: UpgradeMode | None = Field(default=None, description="How a change takes state along.")
    last_state_age_ms_max: int | None = Field(
        default=None,
        description=(
            "Of a change from the last state: the greatest age of the latest checkpoint, at the request and at the"
            " approval; null: any age."
        ),
    )
    allow_non_restored_state: bool = False
    rewind_to: str | None = Field(
        default=None,
        description="The earlier savepoint that the new revision starts from; null: the job's present state.",
    )
    rescale_mode: RescaleMode | None = Field(
        default=None, description="Of a rescale: LIVE, by the running driver, or STANDBY, by a new driver."
    )
    not_live: FailureAnswer | None = Field(default=None, description="Why a new driver carries the rescale out.")
    held_ms: int | None = Field(default=None, description="How long batches waited in a live rescale.")
    old_attempt: int | None = Field(default=None, description="The attempt that takes the savepoint, or ends.")
    new_attempt: int | None = None
    plan: PlanAnswer | None = Field(default=None, description="The effects, in the answer to a dry run.")
    result: OperationResult | None = None
    failure: FailureAnswer | None = None
    cancel_requested_at_ms: int | None = None
    can_cancel: bool = Field(default=False, description="Whether a cancel would be accepted now.")
    metrics_before: ChangeMetricsAnswer | None = Field(
        default=None, description="The job's metrics when the change was requested."
    )
    metrics_after: ChangeMetricsAnswer | None = Field(
        default=None,
        description=(
            "A minute after the job had caught up; after its first batch if its sources do not report how many records"
            " are left."
        ),
    )


class OperationList(ListAnswer):
    """A job's operations, the newest first."""

    operations: list[OperationAnswer]
