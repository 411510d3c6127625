"""Rescales and all other changes, with their phases and the downtime."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator

from keyscale.jobs.protocol.operations import ChangePhase, OperationKind, OperationStatus

from .base import Answer, FailureAnswer, ListAnswer, OperationId, Request, example


class RescaleRequest(Request):
    """Changes a running job's parallelism."""

    parallelism: int = Field(description="From 1 to the job's max parallelism.", examples=[4])
    rescale_id: OperationId | None = None
    dry_run: bool = Field(default=False, description="Only show the plan, as POST /v1/jobs/{job_id}/plan does.")


class PhaseAnswer(Answer):
    """A phase of a change and the time it took."""

    phase: ChangePhase
    started_at_ms: int
    ended_at_ms: int | None
    duration_ms: int | None


class LedgerStep(StrEnum):
    """The parts of a change's downtime, and the time after it."""

    SAVEPOINT = "savepoint"  # the old driver takes it, and processes nothing more
    STOP = "stop"  # the old driver ends
    TRIAL = "trial"  # of a change that is rolled back: its driver started, and did not hold
    SUBMIT = "submit"  # until the new driver's process is started; it mostly was before
    SESSION = "session"  # until its Spark session is up, likewise
    RESTORE = "restore"
    FIRST_BATCH = "first_batch"
    CAUGHT_UP = "caught_up"  # after the downtime: until the sources have as little left as before


class StepAnswer(Answer):
    """A part of the downtime of a change.

    The last part, `caught_up`, follows the downtime.
    """

    name: LedgerStep = Field(
        description=(
            "savepoint, stop: of the old driver. trial: of the driver of a change that is rolled back. submit, session:"
            " of the new driver, if it was not ready by then."
            " restore, first_batch. caught_up: until the sources had as few records left as before the change."
        )
    )
    started_at_ms: int
    ended_at_ms: int
    duration_ms: int


class ChangeFiguresAnswer(Answer):
    """The job's metrics in its driver's last report at that time.

    null: unknown.
    """

    input_rate: float | None
    processed_rate: float | None
    busy_ratio: float | None
    batch_duration_ms: float | None
    lag_records: int | None
    lag_ms: int | None


class RescaleAnswer(Answer):
    """A rescale: a change of the parallelism alone."""

    model_config = example(
        id="3c1d6d1e8f0a4b5c9d2e7f8a9b0c1d2e",
        job_id="0d3b8d0e4c1a4b0f8a5c6d7e8f9a0b1c",
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
        from_parallelism=2,
        to_parallelism=4,
        old_attempt=1,
        new_attempt=2,
        savepoint_location="file:///store/0d3b/savepoints/3c1d/manifest.json",
        requested_at_ms=1_795_000_000_000,
        ended_at_ms=1_795_000_007_000,
        duration_ms=7000,
        downtime_ms=1800,
        failure=None,
    )

    id: str
    job_id: str
    status: OperationStatus
    phase: ChangePhase = Field(description="The current phase, or the last phase.")
    phases: list[PhaseAnswer] = Field(description="All phases so far, in order.")
    from_parallelism: int
    to_parallelism: int
    old_attempt: int
    new_attempt: int | None
    savepoint_location: str | None
    requested_at_ms: int
    ended_at_ms: int | None
    duration_ms: int | None
    downtime_ms: int | None = Field(
        description=(
            "From the last committed batch of the old attempt to the first committed batch of the new attempt. Without"
            " input around the rescale: from the command to stop to the restored state. null: not known yet, or the"
            " change has not stopped the job."
        )
    )
    steps: list[StepAnswer] = Field(
        default_factory=list, description="The parts of the downtime. Each step begins where the previous step ended."
    )
    prepared_ms: int | None = Field(
        default=None, description="How long the new driver started while the old driver still ran."
    )
    before: ChangeFiguresAnswer | None = Field(default=None, description="When the change was requested.")
    after: ChangeFiguresAnswer | None = Field(
        default=None,
        description=(
            "A minute after the job had caught up; after its first batch if its sources do not report how many records"
            " are left."
        ),
    )
    cancel_requested_at_ms: int | None = None
    can_cancel: bool = Field(default=False, description="Whether a cancel would be accepted now.")
    failure: FailureAnswer | None


class RescaleList(ListAnswer):
    """A job's rescales, the newest first."""

    rescales: list[RescaleAnswer]


UpgradeModeName = Literal["savepoint", "last-state", "stateless"]


class ChangeAnswer(RescaleAnswer):
    """A change of a running job from one revision to another."""

    model_config = example(
        id="3c1d6d1e8f0a4b5c9d2e7f8a9b0c1d2e",
        job_id="0d3b8d0e4c1a4b0f8a5c6d7e8f9a0b1c",
        kind="UPGRADE",
        status="ROLLED_BACK",
        phase="ROLL_BACK",
        phases=[],
        from_revision=2,
        to_revision=3,
        from_parallelism=2,
        to_parallelism=2,
        upgrade_mode="savepoint",
        allow_non_restored_state=False,
        rewind_to=None,
        old_attempt=1,
        new_attempt=2,
        savepoint_location="file:///store/0d3b/savepoints/3c1d/manifest.json",
        requested_at_ms=1_795_000_000_000,
        ended_at_ms=1_795_000_007_000,
        duration_ms=7000,
        downtime_ms=1800,
        failure={"code": "JOB_FUNCTION_FAILED", "message": "ValueError: no such airport"},
    )

    kind: OperationKind = Field(description="ROLLBACK: to an earlier revision, as a user asked.")
    from_revision: int
    to_revision: int
    upgrade_mode: UpgradeModeName
    allow_non_restored_state: bool
    rewind_to: str | None = Field(
        description="The earlier savepoint that the new revision starts from; null: the job's present state."
    )

    @field_validator("upgrade_mode", mode="before")
    @classmethod
    def _spell(cls, mode: str) -> str:
        return mode.lower().replace("_", "-")


class ChangeList(ListAnswer):
    """A job's changes, the newest first."""

    changes: list[ChangeAnswer]
