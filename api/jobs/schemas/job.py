"""Jobs and their attempts."""

from __future__ import annotations

from pydantic import AliasChoices, ConfigDict, Field

from keyscale.jobs.protocol.messages import AttemptMetrics, Counters
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import AttemptStage, ClaimMode, DesiredState, JobStatus, OperationKind, RestoreMode

from ...health.schemas import HealthAnswer
from ...shapes import Answer, FailureAnswer, JobName, Labels, ListAnswer, example
from .condition import ConditionAnswer
from .job_metrics import JobMetricsAnswer
from .job_spec import MaskedSpec, NewSpec, SpecificationChange
from .restore import CLAIM_NEEDS_SOURCE, SOURCE_NAMES_ITS_JOB, RestoreRequest


class JobRequest(RestoreRequest):
    """A new job."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "departures",
                    "spec": {
                        "artifact_id": "5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
                        "parallelism": 2,
                        "parameters": {"input": "/data/reports", "output": "/data/out"},
                        "checkpoints": {"interval_ms": 5000},
                    },
                }
            ],
            **CLAIM_NEEDS_SOURCE,
            **SOURCE_NAMES_ITS_JOB,
        },
    )

    name: JobName
    labels: Labels = Field(
        default_factory=dict, description="Fixed; tokens can be limited to jobs with certain labels."
    )
    spec: NewSpec


class CloneRequest(SpecificationChange, RestoreRequest):
    """A new job with another job's specification and state.

    The patch applies to the specification of the other job.
    """

    model_config = ConfigDict(json_schema_extra={})  # without a source, a clone takes the latest snapshot

    name: JobName
    labels: Labels | None = Field(default=None, description="Default: the labels of the cloned job.")
    start: bool = Field(default=False, description="Start the job immediately.")


class AttemptSummaryAnswer(Answer):
    """One run of a job by one driver, without the driver's metrics."""

    number: int = Field(description="The fencing number.")
    revision: int = Field(description="Number of the job's revision that it runs.")
    stage: AttemptStage
    cause: str = Field(description="Why it was created: start, recover, rescale, upgrade, roll back.")
    parallelism: int
    restore_from: str | None
    driver_state: str | None = Field(description="The state that the driver last reported.")
    pid: int | None = Field(description="Process id of the driver's Python process.")
    sleep_requested_at_ms: int | None = Field(default=None, description="Since when its driver shall sleep.")
    fell_asleep_at_ms: int | None = Field(default=None, description="Since when its driver sleeps, or has slept.")
    host: str | None
    spark_ui_url: str | None
    created_at_ms: int
    launched_at_ms: int | None
    attached_at_ms: int | None
    restored_at_ms: int | None
    running_at_ms: int | None
    heartbeat_at_ms: int | None
    ended_at_ms: int | None
    first_commit_batch_id: int | None
    first_commit_at_ms: int | None
    last_commit_batch_id: int | None
    last_commit_at_ms: int | None
    exit_code: int | None
    failure: FailureAnswer | None


class AttemptMetricsAnswer(AttemptMetrics):
    """The metrics of an attempt in its driver's last report."""

    job_counters: Counters | None = Field(
        default=None,
        validation_alias=AliasChoices("job_counters", "counters"),
        description=(
            "The counters of the job, over all its attempts, as of the report; `metrics` of the job has them, too."
            " null: the driver had not restored the state."
        ),
    )


class AttemptAnswer(AttemptSummaryAnswer):
    """One run of a job by one driver."""

    metrics: AttemptMetricsAnswer | None = Field(
        description="Of the attempt alone: its counters began at zero. `metrics` of the job counts all attempts."
    )


class AttemptList(ListAnswer):
    """A job's attempts, the newest first."""

    attempts: list[AttemptAnswer]


class LatestCheckpointAnswer(Answer):
    """The latest completed checkpoint of a job."""

    id: int
    completed_at_ms: int | None
    end_to_end_duration: int
    checkpointed_size: int = Field(description="Bytes uploaded for it.")
    state_size: int = Field(description="Bytes of the whole state.")


class RestoreAnswer(Answer):
    """A pending restore that no attempt has carried out yet."""

    mode: RestoreMode
    location: str | None
    claim_mode: ClaimMode
    allow_non_restored_state: bool


_SPEC = JobSpec.model_validate(
    {
        "artifact_id": "5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
        "parallelism": 2,
        "max_parallelism": 128,  # its default needs the rules of state, which clients need not import
        "parameters": {"input": "/data/reports", "output": "/data/out", "database": {"secret": "DATABASE"}},
        "checkpoints": {"interval_ms": 5000},
        "restart": {"type": "fixed-delay", "attempts": 3, "delay_ms": 1000},
    }
).given()


class RunningOperationAnswer(Answer):
    """An operation in progress."""

    id: str
    kind: OperationKind


class JobStatusSummaryAnswer(Answer):
    """What the platform has observed of a job.

    It has no metrics of single operators and subtasks.
    """

    state: JobStatus
    desired: DesiredState
    conditions: list[ConditionAnswer] = Field(description="One of each type.")
    failure: FailureAnswer | None = Field(
        description="The last failure, until a batch is committed after it or the job is started by its user."
    )
    health: HealthAnswer = Field(description="How well the job is, and what is wrong.")
    artifact_name: str
    artifact_version: int
    store_url: str
    started_at_ms: int | None
    ended_at_ms: int | None
    running_since_ms: int | None = Field(description="Since when its attempt runs it without a break; else null.")
    restarts: int = Field(description="How often the driver was replaced after a failure.")
    attempt: AttemptSummaryAnswer | None = Field(
        description=("The attempt that may run the job now, or else the last attempt.")
    )
    latest_checkpoint: LatestCheckpointAnswer | None = Field(description="The latest completed checkpoint.")
    restorable_until_at_ms: int | None = Field(
        description=(
            "Until when the sources keep all records after the newest checkpoint or savepoint, as far as they tell;"
            " null: unknown, or for ever."
        )
    )
    restore: RestoreAnswer | None = Field(
        description="How the next start restores; null: from the job's own latest checkpoint or savepoint."
    )
    operation: RunningOperationAnswer | None = Field(
        description="The operation in progress that moves the job; checkpoints, savepoints and a cancel are beside it."
    )


class JobStatusAnswer(JobStatusSummaryAnswer):
    """What the platform has observed of a job."""

    attempt: AttemptAnswer | None = Field(description="The attempt that may run the job now, or else the last attempt.")


class JobSummaryAnswer(Answer):
    """A job, without the metrics of each operator and subtask."""

    model_config = example(
        id="0d3b8d0e4c1a4b0f8a5c6d7e8f9a0b1c",
        name="departures",
        labels={"team": "travel"},
        revision=1,
        created_at_ms=1_795_000_000_000,
        spec=_SPEC,
        status={
            "state": "RUNNING",
            "desired": "RUNNING",
            "conditions": [
                {
                    "type": "RUNNING",
                    "status": "TRUE",
                    "reason": "DRIVER_RUNS",
                    "message": "attempt 1 runs the job",
                    "since_ms": 1_795_000_004_000,
                }
            ],
            "failure": None,
            "health": {"level": "OK", "score": 100, "reasons": []},
            "artifact_name": "departures",
            "artifact_version": 1,
            "store_url": "file:///home/me/.keyscale/store",
            "started_at_ms": 1_795_000_001_000,
            "ended_at_ms": None,
            "running_since_ms": 1_795_000_004_000,
            "restarts": 0,
            "attempt": None,
            "latest_checkpoint": {
                "id": 12,
                "completed_at_ms": 1_795_000_060_000,
                "end_to_end_duration": 180,
                "checkpointed_size": 20_480,
                "state_size": 1_048_576,
            },
            "restore": None,
            "operation": None,
        },
        metrics={
            "input_rate": 1000.0,
            "processed_rate": 8000.0,
            "busy_ratio": 0.125,
            "batch_duration_ms": 250.0,
            "lag_records": 0,
            "lag_records_at_ms": 1_795_000_060_500,
            "lag_ms": 900,
            "watermark_ms": 1_795_000_059_000,
            "state_size": 1_048_576,
            "input_records": 60_000,
            "output_records": 60_000,
            "late_records": 0,
            "dead_letters": 0,
            "lost_records": 0,
        },
    )

    id: str
    name: str
    labels: dict[str, str]
    revision: int = Field(description="Number of the job's revision, with this specification; also the ETag.")
    created_at_ms: int
    spec: MaskedSpec
    status: JobStatusSummaryAnswer
    metrics: JobMetricsAnswer


class JobAnswer(JobSummaryAnswer):
    """A job."""

    status: JobStatusAnswer


class JobList(ListAnswer):
    """All jobs, the newest first, without the metrics of their attempts."""

    jobs: list[JobSummaryAnswer]
