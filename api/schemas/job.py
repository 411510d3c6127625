from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from api.schemas.base import NAME_PATTERN, Answer, FailureAnswer, OperationId, Request, example
from db.statuses import AttemptStage, DesiredState, JobStatus
from jobs.wire import CheckpointSettings, DriverMetrics, RestartStrategy


class JobRequest(Request):
    """A new job."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "departures",
                    "artifact_id": "5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
                    "parallelism": 2,
                    "parameters": {"input": "/data/reports", "output": "/data/out"},
                    "checkpoints": {"interval_ms": 5000},
                }
            ]
        },
    )

    name: str = Field(pattern=NAME_PATTERN, description="Unique; may be used wherever the API takes a job's id.")
    artifact_id: str = Field(description="A .py or .zip artifact.")
    parallelism: int = Field(default=1, description="From 1 to max_parallelism.")
    max_parallelism: int | None = Field(
        default=None, description="Number of key groups, fixed for ever. Default: as in Flink, at least 128."
    )
    hash_id: Literal["spark", "java"] = Field(default="spark", description="How keys are hashed to key groups.")
    parameters: dict[str, str] = Field(default_factory=dict, description="What the script reads as env.parameters.")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="Spark settings of the allow-list.")
    checkpoints: CheckpointSettings = CheckpointSettings()
    restart: RestartStrategy | None = Field(
        default=None,
        description="Whether and when it is started again after a failure. Default: as its script says; else at once the first "
        "time, then ever later up to a minute, until 8 attempts in a row have made no progress.",
    )


class StopRequest(Request):
    """How to stop."""

    drain: bool = Field(default=False, description="First process all input there is; the job is then FINISHED.")
    operation_id: OperationId | None = None


class AttemptAnswer(Answer):
    """One run of a job by one driver."""

    number: int = Field(description="The fencing number.")
    stage: AttemptStage
    cause: str = Field(description="Why it was made: start, recover, rescale, roll back.")
    parallelism: int
    restore_from: str | None
    driver_state: str | None = Field(description="As the driver itself reported it last.")
    pid: int | None = Field(description="Of the driver's Python process.")
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
    metrics: DriverMetrics | None


class AttemptList(Answer):
    """A job's attempts, the newest first."""

    attempts: list[AttemptAnswer]


class JobAnswer(Answer):
    """A job."""

    model_config = example(
        id="0d3b8d0e4c1a4b0f8a5c6d7e8f9a0b1c",
        name="departures",
        status="RUNNING",
        desired="RUNNING",
        artifact_id="5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
        artifact_name="departures",
        artifact_version=1,
        parallelism=2,
        max_parallelism=128,
        hash_id="spark",
        parameters={"input": "/data/reports", "output": "/data/out"},
        spark_conf={},
        checkpoints={"interval_ms": 5000},
        restart={"type": "fixed-delay", "attempts": 3, "delay_ms": 1000},
        store_url="file:///home/me/.keyscale/store",
        created_at_ms=1_795_000_000_000,
        started_at_ms=1_795_000_001_000,
        ended_at_ms=None,
        restarts=0,
        attempt=None,
        rescale_id=None,
        stop_operation_id=None,
        failure=None,
    )

    id: str
    name: str
    status: JobStatus
    desired: DesiredState
    artifact_id: str
    artifact_name: str
    artifact_version: int
    parallelism: int
    max_parallelism: int
    hash_id: str
    parameters: dict[str, str]
    spark_conf: dict[str, str]
    checkpoints: CheckpointSettings
    restart: RestartStrategy | None = Field(description="What it was created with.")
    store_url: str
    created_at_ms: int
    started_at_ms: int | None
    ended_at_ms: int | None
    restarts: int = Field(description="How often its driver was replaced after a failure.")
    attempt: AttemptAnswer | None = Field(description="The one that may run the job now, else the last one.")
    rescale_id: str | None = Field(description="Of the rescale in progress.")
    stop_operation_id: str | None = Field(description="Of the last stop with a savepoint.")
    failure: FailureAnswer | None = Field(description="Of a FAILED job; of one that restarts: why it had to.")


class JobList(Answer):
    """All jobs, the newest first."""

    jobs: list[JobAnswer]


class EventAnswer(Answer):
    """Something that happened."""

    id: int
    at_ms: int
    job_id: str | None
    kind: str
    actor: str
    message: str
    details: dict[str, Any]


class EventList(Answer):
    """Events, the newest first."""

    events: list[EventAnswer]


class LogAnswer(Answer):
    """The end of a driver's log."""

    attempt: int
    text: str
    size_bytes: int = Field(description="Of the whole log.")
    truncated: bool = Field(description="Whether there is more before `text`.")
