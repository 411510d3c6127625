"""Jobs, and what a user does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate

from keyscale.api.autoscaling.schemas import (
    AutoscalerAnswer,
    ReplayAnswer,
    ScalingDecisionAnswer,
    ScalingDecisionList,
)
from keyscale.api.jobs.schemas.job import (
    AttemptAnswer,
    AttemptList,
    CloneRequest,
    JobAnswer,
    JobList,
    JobRequest,
    JobSummaryAnswer,
)
from keyscale.api.jobs.schemas.job_exception import JobExceptionAnswer, JobExceptionList
from keyscale.api.metrics.schemas.day import DayList
from keyscale.api.metrics.schemas.key_group_history import KeyGroupsAnswer
from keyscale.api.metrics.schemas.series import SeriesAnswer, SeriesName
from keyscale.api.metrics.schemas.user_metric import UserMetricList
from keyscale.api.operations.schemas.change import RollbackRequest, UpdateRequest
from keyscale.api.operations.schemas.operation import OperationAnswer, OperationRequest, RescaleRequest, StartRequest
from keyscale.api.recovery.schemas import RecoveredJobList, RecoverRequest
from keyscale.vocabulary import OperationKind

from ..call import PLAN_TIMEOUT_S, REQUEST_TIMEOUT_S, Call, Pages, Stream
from ..change_event import ChangeEvent
from ..method import ListMethod, Method, Noun, P, R, S, StreamMethod, action, change, creation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

JOBS = "/v1/jobs"
JOB = "/v1/jobs/{job_id}"


def operation(
    kind: OperationKind, request: Callable[P, R], *, timeout_s: float = REQUEST_TIMEOUT_S
) -> Method[Concatenate[str, P], OperationAnswer]:
    """Returns the method that requests an operation of a kind."""
    method = action(f"{JOB}/{kind.short_form}", request, OperationAnswer, timeout_s=timeout_s)
    method.__doc__ = kind.traits.summary
    return method


class Jobs(Noun[S]):
    """Jobs. Each method takes a job's id or name."""

    create = creation(JOBS, JobRequest, JobAnswer)
    """Creates a job. It is not started."""

    @Method
    def get(self, job: str) -> Call[JobAnswer]:
        """Shows a job."""
        return Call("GET", JOB, JobAnswer, {"job_id": job})

    @ListMethod
    def list(self, *, limit: int | None = None) -> Pages[JobSummaryAnswer]:
        """Lists the jobs in the user's scope, the newest first."""
        return Pages(Call("GET", JOBS, JobList, query={"limit": limit}), "jobs")

    @Method
    def bundle(self, job: str) -> Call[bytes]:
        """Downloads the support bundle of a job, as a zip."""
        return Call("GET", f"{JOB}/bundle", bytes, {"job_id": job})

    @Method
    def delete(self, job: str, *, keep_objects: bool = False) -> Call[None]:
        """Deletes a job that does not run, and then its stored objects."""
        return Call("DELETE", JOB, None, {"job_id": job}, query={"keep_objects": keep_objects})

    start = operation(OperationKind.START, StartRequest)
    stop = operation(OperationKind.STOP, OperationRequest)
    drain = operation(OperationKind.DRAIN, OperationRequest)
    cancel = operation(OperationKind.CANCEL, OperationRequest)
    restart = operation(OperationKind.RESTART, OperationRequest)
    checkpoint = operation(OperationKind.CHECKPOINT, OperationRequest)
    savepoint = operation(OperationKind.SAVEPOINT, OperationRequest)
    rescale = operation(OperationKind.RESCALE, RescaleRequest, timeout_s=PLAN_TIMEOUT_S)

    update = change(JOB, UpdateRequest, OperationAnswer)
    """Changes a job's specification. The second argument is the revision that the change is for."""

    rollback = operation(OperationKind.ROLLBACK, RollbackRequest, timeout_s=PLAN_TIMEOUT_S)

    clone = action(f"{JOB}/clone", CloneRequest, JobAnswer, timeout_s=PLAN_TIMEOUT_S)
    """Creates a job with another job's specification and state."""

    recover = creation("/v1/recover", RecoverRequest, RecoveredJobList, timeout_s=PLAN_TIMEOUT_S)
    """Rebuilds jobs from the store after the database was lost."""

    @ListMethod
    def attempts(self, job: str, *, limit: int | None = None) -> Pages[AttemptAnswer]:
        """Lists a job's attempts, the newest first."""
        return Pages(Call("GET", f"{JOB}/attempts", AttemptList, {"job_id": job}, {"limit": limit}), "attempts")

    @ListMethod
    def exceptions(self, job: str, *, limit: int | None = None) -> Pages[JobExceptionAnswer]:
        """Lists the failures of a job's runs, the newest first."""
        return Pages(
            Call("GET", f"{JOB}/exceptions", JobExceptionList, {"job_id": job}, {"limit": limit}), "exceptions"
        )

    @Method
    def autoscaler(self, job: str) -> Call[AutoscalerAnswer]:
        """Shows the mode, latest decision and last move of a job's autoscaler."""
        return Call("GET", f"{JOB}/autoscaler", AutoscalerAnswer, {"job_id": job})

    @Method
    def replay_input(self, job: str, parallelism: int, *, hours: float | None = None) -> Call[ReplayAnswer]:
        """Replays a job's past input at another parallelism."""
        query = {"parallelism": parallelism, "hours": hours}
        return Call("GET", f"{JOB}/autoscaler/replay", ReplayAnswer, {"job_id": job}, query)

    @ListMethod
    def scaling_decisions(
        self, job: str, *, moves_only: bool | None = None, limit: int | None = None
    ) -> Pages[ScalingDecisionAnswer]:
        """Lists the autoscaler's decisions about a job, the newest first."""
        query = {"moves_only": moves_only, "limit": limit}
        return Pages(
            Call("GET", f"{JOB}/autoscaler/decisions", ScalingDecisionList, {"job_id": job}, query), "decisions"
        )

    @Method
    def key_groups(self, job: str, *, operator: str | None = None) -> Call[KeyGroupsAnswer]:
        """Shows each key group's size at the latest checkpoints, and its owner."""
        return Call("GET", f"{JOB}/key-groups", KeyGroupsAnswer, {"job_id": job}, {"operator": operator})

    @Method
    def series(
        self,
        job: str,
        *,
        names: Sequence[SeriesName] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        points: int | None = None,
    ) -> Call[SeriesAnswer]:
        """Shows a job's metrics over time, with events."""
        query = {"names": names, "from_ms": from_ms, "to_ms": to_ms, "points": points}
        return Call("GET", f"{JOB}/series", SeriesAnswer, {"job_id": job}, query)

    @Method
    def user_metrics(self, job: str) -> Call[UserMetricList]:
        """Lists the metrics that a job's functions declare, with their values."""
        return Call("GET", f"{JOB}/user-metrics", UserMetricList, {"job_id": job})

    @Method
    def days(self, job: str, *, limit: int | None = None) -> Call[DayList]:
        """Lists a job's records, restarts and checkpoints per day, the newest first."""
        return Call("GET", f"{JOB}/days", DayList, {"job_id": job}, {"limit": limit})

    @StreamMethod
    def stream(self, job: str) -> Stream[ChangeEvent]:
        """Reports changes of a job until the job is deleted."""
        return _changes(f"{JOB}/stream", {"job_id": job})

    @StreamMethod
    def stream_all(self) -> Stream[ChangeEvent]:
        """Reports changes of the jobs in the user's scope."""
        return _changes("/v1/stream", {})


def _changes(template: str, places: dict[str, str | int]) -> Stream[ChangeEvent]:
    return Stream(Call("GET", template, object, places), ChangeEvent.of, ChangeEvent.is_last)
