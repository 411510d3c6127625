"""Operations: long actions on a job, polled by their id."""

from __future__ import annotations

from pydantic import Field

from keyscale.db.statuses import SnapshotOwner
from keyscale.jobs.protocol.operations import OperationKind, OperationStatus

from .base import Answer, FailureAnswer, ListAnswer, OperationId, Request, example
from .change import ChangeAnswer


class OperationRequest(Request):
    """Triggers an operation."""

    operation_id: OperationId | None = None


class SavepointRequest(Request):
    """Triggers a savepoint."""

    savepoint_id: OperationId | None = None


class OperationAccepted(Answer):
    """The operation is stored and will be carried out.

    Poll it by its id.
    """

    model_config = example(operation_id="nightly-2026-11-21", status="IN_PROGRESS")

    operation_id: str
    status: OperationStatus


class OperationResult(Answer):
    """The result of a completed operation."""

    location: str | None = Field(default=None, description="Location of the manifest of the savepoint or checkpoint.")
    checkpoint_id: int | None = None
    discarded: bool = Field(default=False, description="Whether the savepoint or checkpoint was deleted since.")
    rescale_id: str | None = None
    change_id: str | None = None


class OperationAnswer(Answer):
    """An operation.

    `operation` is set when it is COMPLETED, `failure_cause` when it is FAILED.
    """

    model_config = example(
        id="nightly-2026-11-21",
        job_id="0d3b8d0e4c1a4b0f8a5c6d7e8f9a0b1c",
        kind="SAVEPOINT",
        status="COMPLETED",
        created_at_ms=1_795_000_000_000,
        ended_at_ms=1_795_000_001_200,
        operation={"location": "file:///store/0d3b/savepoints/nightly-2026-11-21/manifest.json", "checkpoint_id": 7},
        failure_cause=None,
    )

    id: str
    job_id: str
    kind: OperationKind
    status: OperationStatus
    created_at_ms: int
    ended_at_ms: int | None
    operation: OperationResult | None = None
    failure_cause: FailureAnswer | None = None
    change: ChangeAnswer | None = Field(
        default=None, description="With the phases, if it is a rescale or another change; else null."
    )


class SavepointAnswer(OperationAnswer):
    """A savepoint and the operation that takes it."""

    savepoint_id: str
    owner: SnapshotOwner = Field(
        description="PLATFORM: it was taken for a change; the platform deletes it when nothing needs it."
    )


class SavepointList(ListAnswer):
    """A job's savepoints, the newest first."""

    savepoints: list[SavepointAnswer]
