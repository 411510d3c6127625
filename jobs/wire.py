"""What a driver and the control plane say to each other, over HTTP, as JSON.

Values without behaviour: this and the decisions of `restart.py` are all of `jobs` that the control plane may import. A driver authenticates with the token
of its attempt (`Authorization: Bearer ...`), which also says which job and attempt it is, so no message names them twice.

    POST /driver/attach        AttachRequest     -> AttachResponse      ask for work; repeated while told to wait
    GET  /driver/artifact                        -> the artifact's bytes
    POST /driver/heartbeat     Heartbeat         -> HeartbeatResponse   state and metrics up, commands down
    POST /driver/checkpoints   CheckpointReport  -> 204                 idempotent by checkpoint_id

Every message may arrive twice or late; every one is idempotent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FAILURE_TIMES_MAX = 100


class Message(BaseModel):
    """Base of all messages: unknown fields are ignored, so that an older peer understands a newer one."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class DriverState(StrEnum):
    """Where a driver is in its life, as the driver itself sees it."""

    STANDBY = "STANDBY"  # Spark is up; waiting for an assignment
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"  # terminal: stopped as told, nothing more will be committed
    FINISHED = "FINISHED"  # terminal: drained, all input processed and committed
    FAILED = "FAILED"  # terminal: see Heartbeat.failure
    FENCED = "FENCED"  # terminal: another attempt has taken over


class CheckpointStatus(StrEnum):
    """Status of a checkpoint or savepoint, in the design's words."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SUBSUMED = "SUBSUMED"
    DISCARDED = "DISCARDED"


class CommandKind(StrEnum):
    """What a control plane may tell a driver."""

    CHECKPOINT = "CHECKPOINT"  # take a checkpoint now
    SAVEPOINT = "SAVEPOINT"  # take a savepoint, go on
    STOP_WITH_SAVEPOINT = "STOP_WITH_SAVEPOINT"  # take a savepoint at the last batch, commit nothing after it, end
    CANCEL = "CANCEL"  # end now, without a savepoint


class CheckpointSettings(Message):
    """How often a job's checkpoints are taken and how many are kept."""

    interval_ms: int = Field(default=10_000, ge=100, description="Time between the starts of two checkpoints.")
    min_pause_ms: int = Field(
        default=0, ge=0, description="Least time between the end of one and the start of the next."
    )
    timeout_ms: int = Field(default=600_000, ge=1000, description="A checkpoint not complete by then has failed.")
    retained_count: int = Field(default=3, ge=1, description="How many completed checkpoints are kept.")
    tolerable_failed_checkpoints: int = Field(
        default=10, ge=0, description="Consecutive failures before the job fails."
    )
    store_outage_max_ms: int = Field(
        default=300_000,
        ge=0,
        description="For how long a batch waits for an object store that is away before it fails.",
    )


class NoRestart(Message):
    """A job that fails stays so."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["none"] = "none"


class FixedDelayRestart(Message):
    """A number of restarts in all, each after the same time."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["fixed-delay"] = "fixed-delay"
    attempts: int = Field(default=1, ge=1, description="How many restarts, until the job's user starts it again.")
    delay_ms: int = Field(default=1000, ge=0, description="Between a failure and the restart.")


class ExponentialDelayRestart(Message):
    """Restarts ever later, and soon again once the job has run well for a while."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["exponential-delay"] = "exponential-delay"
    initial_backoff_ms: int = Field(default=1000, ge=1, description="Before the first restart.")
    max_backoff_ms: int = Field(default=60_000, ge=1, description="The longest pause.")
    backoff_multiplier: float = Field(default=1.5, ge=1, le=100, description="Each pause over the one before.")
    reset_backoff_threshold_ms: int = Field(
        default=3_600_000, ge=1, description="After so long without a failure the next pause is the initial one again."
    )
    jitter_factor: float = Field(
        default=0.1, ge=0, le=1, description="By what share of itself a pause is longer or shorter, at random."
    )
    attempts_before_reset_backoff: int | None = Field(
        default=None,
        ge=1,
        le=FAILURE_TIMES_MAX - 1,
        description="Restarts without a reset in between; None: any number.",
    )

    @model_validator(mode="after")
    def _check_backoffs(self) -> Self:
        if self.max_backoff_ms < self.initial_backoff_ms:
            message = "max_backoff_ms is less than initial_backoff_ms"
            raise ValueError(message)
        return self


class FailureRateRestart(Message):
    """Restarts for as long as failures are not too frequent."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["failure-rate"] = "failure-rate"
    max_failures_per_interval: int = Field(
        default=1, ge=1, le=FAILURE_TIMES_MAX - 1, description="One more within the interval, and the job has failed."
    )
    failure_rate_interval_ms: int = Field(default=60_000, ge=1, description="In which failures are counted.")
    delay_ms: int = Field(default=1000, ge=0, description="Between a failure and the restart.")


RestartStrategy = Annotated[
    NoRestart | FixedDelayRestart | ExponentialDelayRestart | FailureRateRestart, Field(discriminator="type")
]
"""Whether and when a job that has failed is started again; the names are Flink's."""


class FailureHistory(Message):
    """The failures of a job since its user started it: how many, and when the latest ones were (milliseconds, ascending)."""

    count: int = 0
    times_ms: list[int] = Field(default_factory=list, max_length=FAILURE_TIMES_MAX)


class Assignment(Message):
    """All that a driver needs to run one attempt of one job."""

    job_id: str
    job_name: str
    attempt: int = Field(ge=1, description="The fencing number; of two attempts the higher one wins.")
    parallelism: int = Field(ge=1)
    max_parallelism: int = Field(ge=1, le=32768)
    hash_id: Literal["spark", "java"] = "spark"
    artifact_filename: str = Field(description="The name it was uploaded by; its ending says what it is (.py, .zip).")
    artifact_sha256: str
    parameters: dict[str, str] = Field(
        default_factory=dict, description="What the user's script reads as env.parameters."
    )
    store_url: str = Field(description="Root of all snapshots: file:///... or s3://bucket/prefix.")
    restore_from: str | None = Field(
        default=None, description="Location of the manifest to start from; None for a job without any checkpoint."
    )
    claim_mode: Literal["no_claim", "claim"] = Field(
        default="no_claim",
        description="With claim the savepoint in restore_from becomes the job's, which deletes it once it is subsumed.",
    )
    next_checkpoint_id: int = Field(default=1, ge=1, description="Checkpoint numbers never start over.")
    checkpoints: CheckpointSettings = CheckpointSettings()
    restart: RestartStrategy | None = Field(
        default=None,
        description="What the job was created with; None: what its script says, else the control plane's own.",
    )
    failures: FailureHistory = FailureHistory()


class AttachRequest(Message):
    """A driver whose Spark session is up asks for work."""

    pid: int
    host: str
    spark_ui_url: str | None = None


class AttachResponse(Message):
    """What to do: run the assignment, ask again after retry_after_ms, or end."""

    decision: Literal["run", "wait", "exit"]
    assignment: Assignment | None = None
    retry_after_ms: int = 200


class Command(Message):
    """An order to a driver; delivered with every heartbeat's answer until its result has been reported."""

    id: str
    kind: CommandKind
    savepoint_id: str | None = None
    drain: bool = Field(
        default=False, description="With STOP_WITH_SAVEPOINT: first process all input there is, then FINISHED."
    )


class Failure(Message):
    """Why something failed, fit to be shown to a user: never a record's content, never a secret."""

    code: str
    message: str
    traceback: str | None = None
    operator_uid: str | None = None
    subtask: int | None = None
    advice: str | None = Field(default=None, description="What its user can do about it.")
    final: bool = Field(default=False, description="The restart strategy has given the job up.")


class CommandResult(Message):
    """The outcome of a command; repeated with every heartbeat until acknowledged by the command's absence."""

    command_id: str
    status: Literal["COMPLETED", "FAILED"]
    location: str | None = Field(default=None, description="Of a savepoint: where its manifest is.")
    checkpoint_id: int | None = None
    failure: Failure | None = None


class Commit(Message):
    """A batch that is durably committed, and when (milliseconds since the epoch)."""

    batch_id: int
    at_ms: int


class SubtaskMetrics(Message):
    """One subtask in the last batch."""

    index: int
    read_records: int = 0
    write_records: int = 0
    busy_ratio: float = Field(default=0.0, description="Share of the time since the batch before in which it had work.")
    open_ms: float = Field(default=0.0, description="To open its state, or to rebuild it.")
    process_ms: float = Field(
        default=0.0, description="Between its first record and its last, waiting for input included."
    )
    finish_ms: float = Field(default=0.0, description="To write what changed.")
    state_bytes: int = Field(default=0, description="Of its state on its host, about.")


class OperatorMetrics(Message):
    """One operator in the last batch."""

    uid: str
    read_records: int = Field(default=0, description="Since the driver started.")
    write_records: int = Field(default=0, description="Likewise, to all outputs.")
    watermark_ms: int | None = Field(default=None, description="Event time up to which its timers have fired.")
    watermark_lag_ms: int | None = Field(default=None, description="By how much that is behind the clock.")
    event_time_lag_ms: int | None = Field(
        default=None,
        description="By how much the latest event of the batch was behind the clock when it was committed.",
    )
    subtasks: list[SubtaskMetrics] = Field(default_factory=list)


class DriverMetrics(Message):
    """Rates and sizes since the driver started or over its last batches."""

    batches: int = 0
    input_records: int = 0
    output_records: int = 0
    input_records_per_second: float = Field(default=0.0, description="That came in, waiting for input included.")
    processed_records_per_second: float = Field(default=0.0, description="That are processed while batches run.")
    batch_duration_ms: float = 0.0
    busy_ratio: float = Field(default=0.0, description="Share of the time in which batches run.")
    waits_for_input: bool = Field(default=False, description="The query has looked for input and found none.")
    subtask_runs: int = Field(default=0, description="Tasks that worked with state.")
    subtask_runs_moved: int = Field(default=0, description="Of them, those on another executor than the one before.")
    subtask_runs_rebuilt: int = Field(default=0, description="Of them, those that rebuilt their state from the store.")
    pending_records: int | None = Field(
        default=None,
        description="By how many offsets the last batch was behind its sources; None where they do not tell.",
    )
    state_bytes: int = Field(default=0, description="As of the last batch, about.")
    operators: list[OperatorMetrics] = Field(default_factory=list)
    store_away_since_ms: int | None = Field(
        default=None, description="Since when the object store has not answered: batches wait for it. None: it answers."
    )
    restart: RestartStrategy | None = Field(default=None, description="The strategy in force, if there is one.")
    failures: FailureHistory = Field(
        default_factory=FailureHistory, description="Those before the attempt, and those that it has restarted after."
    )
    last_failure: Failure | None = Field(default=None, description="The last one that the driver has restarted after.")


class Heartbeat(Message):
    """A driver's state, sent every poll interval (250 ms)."""

    state: DriverState
    first_commit: Commit | None = Field(default=None, description="First batch that this attempt committed.")
    last_commit: Commit | None = None
    restored_at_ms: int | None = Field(default=None, description="When every subtask's state was there.")
    metrics: DriverMetrics = DriverMetrics()
    results: list[CommandResult] = Field(default_factory=list)
    failure: Failure | None = None


class HeartbeatResponse(Message):
    """Commands that have no result yet."""

    commands: list[Command] = Field(default_factory=list)


class SubtaskCheckpointReport(Message):
    """One subtask's part of a checkpoint; field names as in Flink's REST API."""

    operator_uid: str
    index: int
    key_group_start: int
    key_group_end: int
    status: CheckpointStatus
    ack_timestamp: int | None = None
    end_to_end_duration: int = Field(default=0, description="ms from the trigger to this subtask's acknowledgement")
    start_delay: int = Field(default=0, description="ms from the trigger to the start of the synchronous part")
    sync_duration: int = Field(default=0, description="ms that the subtask was stopped")
    async_duration: int = Field(default=0, description="ms of upload")
    checkpointed_size: int = Field(default=0, description="bytes uploaded for this checkpoint")
    state_size: int = Field(default=0, description="bytes of the whole state")
    files: int = 0
    entries: int = Field(default=0, description="entries of the state, about: overwritten ones count until compaction")
    key_group_entries: list[int] = Field(
        default_factory=list, description="of each key group, the first one first; empty if there are very many"
    )
    key_group_bytes: list[int] = Field(default_factory=list, description="likewise")


class CheckpointReport(Message):
    """A checkpoint's or savepoint's progress. COMPLETED is sent only after its manifest has been published."""

    checkpoint_id: int
    status: CheckpointStatus
    is_savepoint: bool = False
    savepoint_id: str | None = None
    trigger_timestamp: int
    latest_ack_timestamp: int | None = None
    end_to_end_duration: int = 0
    checkpointed_size: int = 0
    state_size: int = 0
    processed_records: int = Field(default=0, description="input records since the previous checkpoint")
    external_path: str | None = Field(default=None, description="location of the manifest")
    batch_id: int | None = Field(default=None, description="the state is the one after this batch")
    failure_message: str | None = None
    subtasks: list[SubtaskCheckpointReport] = Field(default_factory=list)
    subsumed_checkpoint_ids: list[int] = Field(
        default_factory=list, description="checkpoints that the retention policy has let go with this one"
    )
