"""A job's checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.snapshots.schemas.checkpoint import (
    CheckpointAnswer,
    CheckpointConfigAnswer,
    CheckpointDetailAnswer,
    CheckpointsAnswer,
)
from keyscale.api.snapshots.schemas.snapshot_maintenance import (
    ComparisonAnswer,
    DeletionAnswer,
    OperatorComparison,
    VerificationAnswer,
    VerifyRequest,
)
from keyscale.api.snapshots.schemas.snapshot_sql import SqlAnswer, SqlRequest

from ..call import PLAN_TIMEOUT_S, Call, Pages
from ..method import ListMethod, Method, Noun, S, part_action

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.vocabulary import CheckpointStatus

CHECKPOINTS = "/v1/jobs/{job_id}/checkpoints"
CHECKPOINT = f"{CHECKPOINTS}/{{checkpoint_id}}"


class Checkpoints(Noun[S]):
    """A job's checkpoints and savepoints, by number."""

    @ListMethod
    def list(
        self, job: str, *, status: Sequence[CheckpointStatus] | None = None, limit: int | None = None
    ) -> Pages[CheckpointAnswer]:
        """Lists a job's checkpoints and savepoints, the newest first."""
        query = {"status": status, "limit": limit}
        return Pages(Call("GET", CHECKPOINTS, CheckpointsAnswer, {"job_id": job}, query), "history")

    @Method
    def statistics(
        self, job: str, *, status: Sequence[CheckpointStatus] | None = None, limit: int | None = None
    ) -> Call[CheckpointsAnswer]:
        """Shows counts, summary and the latest of a job's checkpoints."""
        return Call("GET", CHECKPOINTS, CheckpointsAnswer, {"job_id": job}, {"status": status, "limit": limit})

    @Method
    def config(self, job: str) -> Call[CheckpointConfigAnswer]:
        """Shows how a job's checkpoints are taken."""
        return Call("GET", f"{CHECKPOINTS}/config", CheckpointConfigAnswer, {"job_id": job})

    @Method
    def get(self, job: str, number: int) -> Call[CheckpointDetailAnswer]:
        """Shows a checkpoint by operator and subtask."""
        return Call("GET", CHECKPOINT, CheckpointDetailAnswer, _places(job, number))

    @Method
    def delete(self, job: str, number: int, *, dry_run: bool = False) -> Call[DeletionAnswer]:
        """Deletes an unneeded checkpoint or savepoint.

        A dry run shows what the deletion would free.
        """
        query = {"dry_run": dry_run}
        return Call("DELETE", CHECKPOINT, DeletionAnswer, _places(job, number), query, timeout_s=PLAN_TIMEOUT_S)

    verify = part_action(f"{CHECKPOINT}/verify", VerifyRequest, VerificationAnswer)
    """Verifies a checkpoint or savepoint in the background."""

    sql = part_action(f"{CHECKPOINT}/sql", SqlRequest, SqlAnswer)
    """Runs a SELECT over the state in a checkpoint or savepoint."""

    @Method
    def verification(self, job: str, number: int) -> Call[VerificationAnswer]:
        """Shows the progress or result of a snapshot's last verification."""
        return Call("GET", f"{CHECKPOINT}/verification", VerificationAnswer, _places(job, number))

    @Method
    def compare(self, job: str, number: int, to: int, *, limit: int | None = None) -> Call[ComparisonAnswer]:
        """Compares two checkpoints or savepoints of a job."""
        query = {"to": to, "limit": limit}
        return Call("GET", f"{CHECKPOINT}/compare", ComparisonAnswer, _places(job, number), query)

    @ListMethod
    def compare_operators(
        self, job: str, number: int, to: int, *, limit: int | None = None
    ) -> Pages[OperatorComparison]:
        """Lists the operators of two checkpoints or savepoints with their sizes."""
        query = {"to": to, "limit": limit}
        return Pages(Call("GET", f"{CHECKPOINT}/compare", ComparisonAnswer, _places(job, number), query), "operators")


def _places(job: str, number: int) -> Mapping[str, str | int]:
    return {"job_id": job, "checkpoint_id": number}
