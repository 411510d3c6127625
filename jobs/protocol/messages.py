"""The messages between a driver and the control plane.

Messages are JSON over HTTP: values without behaviour.

A driver authenticates with the token of its attempt (`Authorization: Bearer ...`). The token identifies the job and the
attempt, so messages do not repeat them.

    POST /driver/attach        AttachRequest     -> AttachResponse      ask for work; again if the answer is "wait"
    GET  /driver/artifact                        -> the artifact's bytes
    GET  /driver/store-credentials               -> StoreCredentials    where the platform narrows them to the job
    GET  /driver/proof                           -> Proof               before a driver trusts another address
    POST /driver/heartbeat     Heartbeat         -> HeartbeatResponse   state and metrics up, commands down
    POST /driver/checkpoints   CheckpointReport  -> 204                 idempotent by checkpoint_id
    POST /driver/diagnostics   DiagnosticReport  -> 204                 idempotent by diagnostic_id

Any message may arrive twice or late, so all are idempotent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
)

from keyscale.metrics import BATCH, LOG_COUNTERS, OPERATOR, REPORTED, SINK, SOURCE, SUBTASK, Fold, MetricKind, of_scope
from keyscale.user_series import RESERVED_LABELS, USER_SERIES_MAX
from keyscale.vocabulary import (
    KEY_GROUPS_MAX,
    ArtifactKind,
    CheckpointStatus,
    CommandKind,
    DiagnosticKind,
    DriverState,
    RescalePhase,
)

from .measured import Measure, Measured, with_metrics
from .specification import FAILURE_TIMES_MAX, ReceivedSpec, RestartStrategy
from .storable_text import StorableText

REPORTED_SPLITS_MAX = 200
"""Maximum number of splits per driver in each heartbeat's positions."""
LAG_SPLITS_MAX = 200
"""Maximum number of splits per driver with a lag in each heartbeat."""
_SPLIT_NAME_MAX = 300
_LABEL_MAX = 100


Item = TypeVar("Item")
Items = Annotated[list[Item], FailFast()]
"""A list that is refused at its first wrong item: naming millions of wrong items would take a minute."""
Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""A number that fits into a database column."""
Size = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""A number of bytes, milliseconds or records that is summed: the sum of many still fits into a column."""
OPERATORS_MAX = 1000
"""Maximum number of a job's operators, and of its sinks."""
SUBTASKS_MAX = 32_768
"""Maximum number of subtasks with metrics in a heartbeat, all operators together."""
RECENT_BATCHES_MAX = 12
"""Maximum number of batches with their parts in a heartbeat."""
REPORTED_KEY_GROUPS_MAX = 16
"""Maximum number of an operator's key groups in a heartbeat."""
CHECKPOINT_SUBTASKS_MAX = 65_536
"""Maximum number of parts in a report of a checkpoint: reading a part takes microseconds, and other requests wait."""


DIAGNOSTIC_PARTS_MAX = 200
"""Maximum number of parts in the report of a diagnostic."""
DIAGNOSTIC_CHARACTERS_MAX = 2 << 20
"""Maximum number of characters in the report of a diagnostic, all parts together."""


class Message(BaseModel):
    """The base of all messages.

    Unknown fields are ignored, so that an older peer understands a newer peer.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


class Metrics(Message):
    """The base of messages with the metrics of a scope."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class FailureHistory(Message):
    """The failures of a job since its user started it.

    It holds their number and the ascending times of the latest failures.
    """

    count: Whole = 0
    times_ms: Items[Whole] = Field(default_factory=list, max_length=FAILURE_TIMES_MAX)


class StoreCredentials(Message):
    """Credentials of the object store for the objects of one job.

    They are worthless after they expire.
    """

    access_key_id: str
    secret_access_key: str = Field(repr=False)
    session_token: str = Field(repr=False)
    expires_at_ms: Whole


class LibraryFile(Message):
    """A file that a job brings beside its program."""

    filename: str
    sha256: str
    kind: ArtifactKind


def _free_label(name: str) -> str:
    if name in RESERVED_LABELS:
        raise ValueError(f"{name} is a label of the platform or of Prometheus")
    return name


class ReportedSeries(Message):
    """A series of a user's metric: see `keyscale.user_series.UserSeries`."""

    operator: Annotated[StorableText, Field(max_length=_LABEL_MAX)]
    name: Annotated[StorableText, Field(pattern="^[a-zA-Z][a-zA-Z0-9_]*$", max_length=_LABEL_MAX)]
    kind: MetricKind
    labels: dict[
        Annotated[str, Field(pattern="^[a-zA-Z][a-zA-Z0-9_]*$", max_length=_LABEL_MAX), AfterValidator(_free_label)],
        Annotated[StorableText, Field(max_length=_LABEL_MAX)],
    ] = Field(default_factory=dict, max_length=10)
    values: Items[Measured | Measure] = Field(min_length=1, max_length=100)
    bounds: Items[Measure] = Field(default_factory=list, max_length=100)
    fold: Fold | None = None


@with_metrics(LOG_COUNTERS, "the job was created")
class Counters(Metrics):
    """Numbers of records that a job has handled in all committed batches.

    They count since the job was created.
    """

    user: Items[ReportedSeries] = Field(
        default_factory=list,
        max_length=2 * USER_SERIES_MAX,
        description="The counters and histograms of the users' functions.",
    )


class CarriesSpec(Message):
    """The base of messages with the specification of a job."""

    spec: ReceivedSpec = Field(description="The job's specification; secrets are references.")

    @model_serializer(mode="wrap")
    def _add_settings_of_version_0_2(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Adds settings where a driver of version 0.2 reads them."""
        own = handler(self)
        return {**{name: own["spec"][name] for name in _READ_BY_VERSION_0_2}, **own}


_READ_BY_VERSION_0_2 = (
    "parallelism",
    "max_parallelism",
    "hash_id",
    "parameters",
    "checkpoints",
    "restart",
    "batch_interval_ms",
)


class Assignment(CarriesSpec):
    """Everything that a driver needs to run one attempt of a job."""

    job_id: str
    job_name: str
    attempt: int = Field(ge=1, description="Fencing number; of two attempts, the higher one wins.")
    revision: int = Field(default=1, ge=1, description="Number of the job's revision that the attempt runs.")
    artifact_filename: str = Field(
        description="Name that the artifact was uploaded with; its extension is its type (.py, .zip)."
    )
    artifact_sha256: str
    libraries: Items[LibraryFile] = Field(
        default_factory=list,
        description=(
            "Files that the program imports. The driver was started with them, and refuses to run if a file is missing."
        ),
    )
    store_url: str = Field(description="Root of all snapshots: file:///... or s3://bucket/prefix.")
    restore_from: str | None = Field(
        default=None, description="Location of the manifest to start from; None for a job without any checkpoint."
    )
    claim_mode: Literal["no_claim", "claim"] = Field(
        default="no_claim",
        description="With claim, the job owns the savepoint in restore_from, and deletes it once it is subsumed.",
    )
    restore_mode: Literal["continue", "rewind", "stateless"] = Field(
        default="continue",
        description=(
            "continue: from the job's own history; restore_from says where to look. rewind: from exactly the snapshot"
            " in restore_from; later commits of the job are disowned. stateless: without state, and from the sources'"
            " beginning."
        ),
    )
    restore_id: str | None = Field(
        default=None,
        description=(
            "Names the request to rewind or to start without state. If an earlier attempt has carried out the request,"
            " the attempt continues from there. Without a name every attempt carries it out."
        ),
    )
    allow_non_restored_state: bool = Field(
        default=False,
        description="Whether state that the program no longer has is dropped; otherwise such a start is refused.",
    )
    next_checkpoint_id: int = Field(
        default=1, ge=1, description="Number of the next checkpoint; numbers are never reused."
    )
    skip_lost_records: bool = Field(
        default=False, description="Whether all Python sources skip lost records, whatever their own setting."
    )
    time_reset_after: Whole | None = Field(
        default=None,
        description=(
            "Event time and processing time begin again in the first attempt after this one; None to keep the times"
            " that the job has reached."
        ),
    )
    failures: FailureHistory = FailureHistory()
    counters: Counters = Field(
        default=Counters(),
        description=(
            "Counters that the control plane knows; used if an earlier version has left no counters in the log."
        ),
    )


class LiveSettings(CarriesSpec):
    """The settings that a running driver follows without a restart."""

    revision: int = Field(ge=1, description="Number of the job's revision that has these settings.")


class AttachRequest(Message):
    """The request for work of a driver with a running Spark session."""

    pid: int = Field(ge=1, le=2**31 - 1)
    host: StorableText
    spark_ui_url: StorableText | None = None
    wants_preview: bool = Field(
        default=False, description="Whether the driver runs its script and checks its targets while it waits."
    )


class AttachResponse(Message):
    """The decision for a driver.

    The driver runs the assignment, asks again after retry_after_ms, or ends.
    """

    decision: Literal["run", "wait", "exit"]
    assignment: Assignment | None = None
    preview: Assignment | None = Field(
        default=None,
        description=(
            "What a waiting driver is expected to run, if it wants to know: the program with its parameters and"
            " settings. The assignment may name another snapshot and other numbers."
        ),
    )
    retry_after_ms: Whole = 200


class ReservedAttempt(Message):
    """An attempt that a running driver may open.

    The driver speaks with the token once the attempt is open.
    """

    token: str = Field(repr=False)
    assignment: Assignment


class Command(Message):
    """A command to a driver.

    Every answer to a heartbeat repeats it until its result has been reported.
    """

    id: str
    kind: CommandKind
    savepoint_id: str | None = None
    drain: bool = Field(
        default=False,
        description=(
            "With STOP_WITH_SAVEPOINT: first process all present input, fire all event-time timers, and end as"
            " FINISHED."
        ),
    )
    next_attempt: ReservedAttempt | None = Field(
        default=None, description="With RESCALE: the attempt with the new parallelism."
    )
    return_attempt: ReservedAttempt | None = Field(
        default=None,
        description=(
            "With RESCALE: the attempt with the old parallelism, for a first batch that fails; None to end the driver"
            " then."
        ),
    )
    limit_ms: Whole | None = Field(default=None, description="With RESCALE: the time limit of its preparation.")
    is_withdrawn: bool = Field(
        default=False, description="With RESCALE: whether to give up, unless the next attempt is open."
    )


class Failure(Message):
    """The reason of a failure, as users see it.

    A user's exception is shown in full, with known secrets masked.
    """

    code: StorableText
    message: StorableText
    traceback: StorableText | None = None
    operator_uid: StorableText | None = None
    subtask: Whole | None = None
    advice: StorableText | None = Field(default=None, description="Advice for the user.")
    final: bool = Field(default=False, description="Whether the restart strategy has given up.")


class CommandResult(Message):
    """The outcome of a command.

    Every heartbeat repeats it until the answer no longer contains the command.
    """

    command_id: StorableText
    status: Literal["COMPLETED", "FAILED"]
    location: StorableText | None = Field(default=None, description="Location of a savepoint's manifest.")
    checkpoint_id: Whole | None = None
    failure: Failure | None = None


class Commit(Message):
    """A durably committed batch.

    The time of the commit is in milliseconds since the epoch.
    """

    batch_id: Whole
    at_ms: Whole


@with_metrics(of_scope(SUBTASK))
class SubtaskMetrics(Metrics):
    """Metrics of one subtask in the last batch."""

    index: Measured


class KeyGroupRecords(Message):
    """The number of records of a key group in a batch."""

    key_group: Measured
    records: Measured


@with_metrics(of_scope(OPERATOR))
class OperatorMetrics(Metrics):
    """Metrics of one operator.

    Counters count since the driver started; other metrics are of the last batch.
    """

    uid: StorableText
    subtasks: Items[SubtaskMetrics] = Field(
        default_factory=list,
        max_length=SUBTASKS_MAX,
        description="Empty if the job has so many subtasks that their metrics would make a heartbeat too long.",
    )
    key_groups: Items[KeyGroupRecords] = Field(
        default_factory=list,
        max_length=REPORTED_KEY_GROUPS_MAX,
        description="The key groups with the most records in the last batch, the largest first.",
    )
    batch_records: Measured = Field(default=0, description="Records of all key groups in the last batch.")


@with_metrics(of_scope(SINK))
class SinkMetrics(Metrics):
    """Metrics of a sink."""

    uid: StorableText


@with_metrics(of_scope(BATCH))
class BatchMetrics(Metrics):
    """The parts of a batch's time.

    They add up to the time since the end of the previous batch.
    """

    batch_id: Whole
    at_ms: Whole = Field(description="Time of its commit.")
    input_records: Measured = 0


@with_metrics(of_scope(SOURCE))
class SourceLag(Metrics):
    """The records of a source that no committed batch has."""

    uid: StorableText
    splits: dict[Annotated[StorableText, Field(max_length=_SPLIT_NAME_MAX)], Measured] = Field(
        default_factory=dict,
        max_length=LAG_SPLITS_MAX,
        description="The number by split, of the splits with most records.",
    )


class TopicPosition(Message):
    """A position in a partition of a Kafka topic."""

    offset: Whole = Field(strict=True, description="The next offset to read.")
    topic_id: Annotated[StorableText, Field(max_length=_SPLIT_NAME_MAX)] = Field(
        default="", description="The topic's id; empty if the broker provides none."
    )


SplitPosition = Annotated[Whole, Strict()] | TopicPosition
"""A position that can be compared with another position of the same split."""


class SourceMetrics(Message):
    """The beginning of the records that a source still has."""

    uid: StorableText
    earliest: dict[Annotated[StorableText, Field(max_length=_SPLIT_NAME_MAX)], SplitPosition] = Field(
        max_length=REPORTED_SPLITS_MAX,
        description="The earliest position of each split, at most six minutes old.",
    )


class GraphNode(Message):
    """A source, operator or sink of the job's graph."""

    uid: StorableText
    kind: Literal["SOURCE", "OPERATOR", "SINK"]
    inputs: Items[StorableText] = Field(
        default_factory=list, description="Uids of the sources and operators that the node receives records from."
    )


class SinkOutage(Message):
    """A sink with an unresponsive system, so that batches wait."""

    uid: StorableText = Field(description="The sink's uid.")
    since_ms: Measured
    reason: StorableText


class CleanUp(Message):
    """The driver's clean-up of the object store.

    Passes delete the objects that no retained checkpoint needs.
    """

    passes: Measured = Field(
        default=0, description="Passes that have ended without a failure since the driver started."
    )
    last_at_ms: Measured | None = Field(default=None, description="Time when the last successful pass ended.")
    deleted_objects: Measured = Field(default=0, description="Objects that the passes have deleted.")
    deleted_bytes: Measured = Field(default=0, description="Size of the deleted objects.")
    removed_writes: Measured = Field(
        default=0, description="Unfinished writes of killed processes that the passes have removed from the store."
    )
    failing_since_ms: Measured | None = Field(
        default=None, description="Time since which passes fail and delete nothing; None if the last pass succeeded."
    )
    failure: Failure | None = Field(default=None, description="Why the last pass failed.")


@with_metrics(REPORTED, "the attempt began")
class AttemptMetrics(Metrics):
    """Rates and sizes since the attempt began, or over its last batches."""

    user_gauges: Items[ReportedSeries] = Field(
        default_factory=list, max_length=2 * USER_SERIES_MAX, description="The gauges of the users' functions."
    )
    user_help: dict[
        Annotated[StorableText, Field(max_length=_LABEL_MAX)], Annotated[StorableText, Field(max_length=300)]
    ] = Field(
        default_factory=dict, max_length=2 * USER_SERIES_MAX, description="The meanings of users' metrics, by name."
    )
    waits_for_input: bool = Field(default=False, description="Whether the last poll for input found none.")
    can_sleep: bool = Field(default=False, description="Whether the driver can sleep, and knows its timers.")
    unwatched: Items[StorableText] = Field(
        default_factory=list,
        max_length=OPERATORS_MAX,
        description="Kinds of the sources that a sleeping driver cannot watch.",
    )
    timers_due_at_ms: Measured | None = Field(
        default=None, description="When the next processing-time timer is due; None if there is none."
    )
    lost_records_since_ms: Measured | None = Field(
        default=None, description="Time at which the driver first found records lost; None if no records were lost."
    )
    operators: Items[OperatorMetrics] = Field(default_factory=list, max_length=OPERATORS_MAX)
    sinks: Items[SinkMetrics] = Field(
        default_factory=list,
        max_length=OPERATORS_MAX,
        description="Metrics of the sinks.",
    )
    recent_batches: Items[BatchMetrics] = Field(
        default_factory=list,
        max_length=RECENT_BATCHES_MAX,
        description="The parts of the last batches, the oldest first.",
    )
    source_lags: Items[SourceLag] = Field(
        default_factory=list,
        max_length=OPERATORS_MAX,
        description="The records that wait, by source; empty if a source cannot count them.",
    )
    sources: Items[SourceMetrics] = Field(
        default_factory=list,
        max_length=REPORTED_SPLITS_MAX,
        description="The sources that report which records they still have; none if all have more than 200 splits.",
    )
    graph: Items[GraphNode] = Field(
        default_factory=list,
        max_length=10 * OPERATORS_MAX,
        description="The job's graph: each node comes after its inputs. Empty before the script has declared it.",
    )
    store_away_since_ms: Measured | None = Field(
        default=None,
        description="Time since which the object store does not answer and batches wait; None if it answers.",
    )
    sink_outage: SinkOutage | None = Field(default=None, description="The sink that batches wait for, if any.")
    clean_up: CleanUp = CleanUp()
    restart: RestartStrategy | None = Field(default=None, description="The effective strategy, if any.")
    failures: FailureHistory = Field(
        default_factory=FailureHistory,
        description="Failures before the attempt, and failures that the attempt has recovered from.",
    )
    last_failure: Failure | None = Field(
        default=None, description="The last failure that the driver has recovered from."
    )


class DriverMetrics(AttemptMetrics):
    """The metrics of an attempt, with the counters of its job."""

    counters: Counters | None = Field(
        default=None,
        description="The job's counters, which its commit log keeps; None before the driver has restored its state.",
    )


class LiveRescale(Message):
    """The progress of a live rescale.

    The times of later phases are None until they are reached.
    """

    command_id: StorableText
    phase: RescalePhase
    from_attempt: Whole
    to_attempt: Whole
    began_at_ms: Whole
    prepared_at_ms: Whole | None = Field(default=None, description="Time when the new subtasks were ready.")
    switched_at_ms: Whole | None = Field(default=None, description="Time when the next attempt was opened.")
    committed_at_ms: Whole | None = Field(default=None, description="Time of the next attempt's first commit.")
    held_ms: Measured | None = Field(default=None, description="How long batches waited for the switch.")
    pause_ms: Measured | None = Field(
        default=None, description="Time from the last commit of the old attempt to the first commit of the next one."
    )
    failure: Failure | None = Field(default=None, description="Why the driver has gone back to the old parallelism.")


class Heartbeat(Message):
    """The state of a driver.

    It is sent when it has changed, at most every 250 ms, and every 9 s otherwise.
    """

    state: DriverState
    attempt: Whole | None = Field(
        default=None, description="The attempt that the heartbeat is about; None from drivers of earlier versions."
    )
    slots: Whole | None = Field(
        default=None,
        description="The largest parallelism that Spark can run at once; None if a live rescale is not possible.",
    )
    rescale: LiveRescale | None = Field(default=None, description="The latest live rescale of this driver, if any.")
    warms_up: bool = Field(
        default=False,
        description="Whether a standby is not ready for its assignment: Spark is cold, or its targets are unchecked.",
    )
    revision: Whole | None = Field(
        default=None, description=("Number of the revision that the driver takes its settings from.")
    )
    first_commit: Commit | None = Field(default=None, description="First batch that this attempt committed.")
    last_commit: Commit | None = None
    restored_at_ms: Whole | None = Field(default=None, description="Time when the state of every subtask was restored.")
    metrics: DriverMetrics = DriverMetrics()
    results: Items[CommandResult] = Field(default_factory=list)
    failure: Failure | None = None


class DiagnosticCommand(Message):
    """The command to take a diagnostic.

    Every answer to a heartbeat repeats it until its report has arrived, or its time is over.
    """

    id: str
    kind: DiagnosticKind
    duration_ms: Whole = Field(default=0, description="How long the driver observes the job.")
    operator_uid: str = Field(default="", description="With SAMPLE: the operator.")
    rows: int = Field(default=0, ge=0, description="With SAMPLE: the number of records, read and emitted.")
    with_values: bool = Field(default=False, description="With SAMPLE: whether to show values, not types and hashes.")


class DiagnosticPart(Message):
    """A part of a diagnostic, such as the stacks of one process."""

    name: StorableText
    text: StorableText


class DiagnosticReport(Message):
    """The outcome of a diagnostic: its parts, or why there are none."""

    diagnostic_id: StorableText
    parts: Items[DiagnosticPart] = Field(default_factory=list, max_length=DIAGNOSTIC_PARTS_MAX)
    failure: Failure | None = None


class HeartbeatResponse(Message):
    """The commands and diagnostics without a result yet, and settings to follow."""

    commands: Items[Command] = Field(default_factory=list)
    diagnostics: Items[DiagnosticCommand] = Field(default_factory=list)
    settings: LiveSettings | None = Field(
        default=None, description="The settings of the job's revision, if the heartbeat names another revision."
    )
    sleeps: bool = Field(default=False, description="Whether an idle driver shall sleep, or sleep on.")
    control_urls: Items[str] = Field(
        default_factory=list, description="Addresses of the control plane's replicas that are alive."
    )


class Call(Message):
    """The answer to a driver that waits."""

    is_called: bool = Field(description="Whether to send a heartbeat now; otherwise the time to wait is over.")


class LargeKeyGroupReport(Message):
    """One of the largest key groups of a subtask."""

    key_group: Whole
    size_bytes: Size = Field(description="bytes; without entries, what files of this key group alone have at least")
    entries: Size | None = Field(default=None, description="entries; null if they are not counted")


class SubtaskCheckpointReport(Message):
    """One subtask's part of a checkpoint.

    Field names are as in Flink's REST API.
    """

    operator_uid: StorableText
    index: Whole
    key_group_start: Whole
    key_group_end: Whole
    status: CheckpointStatus
    ack_timestamp: Whole | None = None
    end_to_end_duration: Size = Field(default=0, description="ms from the trigger to this subtask's acknowledgement")
    start_delay: Size = Field(default=0, description="ms from the trigger to the start of the synchronous part")
    sync_duration: Size = Field(default=0, description="ms that the subtask was stopped")
    async_duration: Size = Field(default=0, description="ms of upload")
    checkpointed_size: Size = Field(
        default=0, description=("bytes that the subtask has added to the store for this checkpoint")
    )
    state_size: Size = Field(default=0, description="bytes of the whole state")
    distinct_size: Size | None = Field(
        default=None, description="bytes of files that no earlier subtask reads; null from older drivers"
    )
    files: Whole = 0
    entries: Size = Field(
        default=0, description="estimated entries of the state; overwritten entries count until compaction"
    )
    key_group_entries: Items[Whole] = Field(
        default_factory=list,
        max_length=KEY_GROUPS_MAX,
        description="estimated entries per key group, in order; empty if there are very many",
    )
    key_group_bytes: Items[Whole] = Field(
        default_factory=list, max_length=KEY_GROUPS_MAX, description="estimated bytes per key group, likewise"
    )
    largest_key_groups: Items[LargeKeyGroupReport] = Field(
        default_factory=list,
        max_length=REPORTED_KEY_GROUPS_MAX,
        description="the key groups that are surely the largest, the largest first",
    )


class CheckpointReport(Message):
    """The progress of a checkpoint or savepoint.

    COMPLETED is sent only after its manifest is published.
    """

    checkpoint_id: Whole
    status: CheckpointStatus
    is_savepoint: bool = False
    savepoint_id: StorableText | None = None
    trigger_timestamp: Whole
    latest_ack_timestamp: Whole | None = None
    end_to_end_duration: Size = 0
    checkpointed_size: Size = 0
    state_size: Size = 0
    processed_records: Size = Field(default=0, description="input records since the previous checkpoint")
    external_path: StorableText | None = Field(default=None, description="location of the manifest")
    batch_id: Whole | None = Field(default=None, description="the batch after which the state was captured")
    failure_message: StorableText | None = None
    subtasks: Items[SubtaskCheckpointReport] = Field(default_factory=list, max_length=CHECKPOINT_SUBTASKS_MAX)
    subsumed_checkpoint_ids: Items[Whole] = Field(
        default_factory=list, description="checkpoints that the retention policy drops with this one"
    )
