"""The metrics of jobs and of the control plane, each declared once.

Drivers, the control plane, the database, the pages, Prometheus and the docs follow from the declarations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum


class MetricKind(StrEnum):
    """How a metric changes."""

    COUNTER = "counter"  # only grows, until its scope begins again
    GAUGE = "gauge"
    HISTOGRAM = "histogram"  # of the control plane's own times


class Scope(StrEnum):
    """What a metric describes."""

    BATCH = "batch"  # a part of one batch's time
    SUBTASK = "subtask"
    OPERATOR = "operator"
    SINK = "sink"
    SOURCE = "source"
    SPLIT = "split"  # a part of a source, such as a partition of a topic
    DRIVER = "driver"  # a job's part that only its driver reports, since it started
    JOB = "job"
    OBSERVED = "observed"  # a job, as the control plane sees it: checkpoints, restarts and what follows from them
    CONTROL_PLANE = "control plane"


class Fold(StrEnum):
    """How several values become one, such as the values of a step."""

    SUM = "sum"
    LARGEST = "largest"
    SMALLEST = "smallest"
    LATEST = "latest"
    MEAN = "mean"
    RATE = "rate"  # the growth of a counter per second; not stored


class Unit(StrEnum):
    """The unit of a metric in Keyscale's own interfaces."""

    RECORDS = "records"
    RECORDS_PER_SECOND = "records/s"
    MS = "ms"
    AT_MS = "ms since the epoch"
    BYTES = "bytes"
    RATIO = "share of 1"
    COUNT = "count"
    SECONDS = "s"  # of the control plane's own metrics, which only Prometheus reads

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return self not in {Unit.RECORDS_PER_SECOND, Unit.RATIO, Unit.SECONDS}


COUNTER, GAUGE, HISTOGRAM = MetricKind
BATCH, SUBTASK, OPERATOR, SINK, SOURCE, SPLIT, DRIVER, JOB, OBSERVED, CONTROL_PLANE = Scope
SUM, LARGEST, SMALLEST, LATEST, MEAN, RATE = Fold


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of a metric.

    Attributes:
        name: Its name in the API, in series and in the database.
        kind: How it changes.
        scope: What it describes.
        unit: Its unit.
        help: Its meaning, in one sentence.
        fold: How values of subtasks, and of a step of a series, become one; None: it has no series.
        of_job: Whether the values of all operators and sinks add up to the job's counter of the same name.
        in_log: Whether the commit log keeps it, so that it is exact although a driver is killed.
        reported_as: Its name in a driver's report; None: the same name, or no part of the report.
        is_fractional: Whether values may have fractions; None: as the unit says.
        is_optional: Whether a report may leave the value unknown.
        weighed_by: The column with the number of samples of a mean.
        source: The counter whose growth a rate is.
        chart: The title of its chart; None: it has no chart.
        label: Its name on the chart and on the pages.
        is_held: Whether a value holds until the next value.
        labels: The labels of a metric of the control plane, or of a job beside the job's own.
        is_scraped: Whether Prometheus gets it; of subtasks the smallest and the largest value.
        stem: The middle of its name in Prometheus; None: the name without its unit.
    """

    name: str
    kind: MetricKind
    scope: Scope
    unit: Unit
    help: str
    fold: Fold | None = None
    of_job: bool = False
    in_log: bool = False
    reported_as: str | None = None
    is_fractional: bool | None = None
    is_optional: bool = False
    weighed_by: str = "samples"
    source: str | None = None
    chart: str | None = None
    label: str = ""
    is_held: bool = False
    labels: tuple[str, ...] = ()
    is_scraped: bool = True
    stem: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.unit.is_whole if self.is_fractional is None else not self.is_fractional

    @property
    def field(self) -> str:
        """The name in a driver's report."""
        return self.reported_as or self.name

    @property
    def has_column(self) -> bool:
        """Whether the database keeps its series."""
        return self.fold not in {None, RATE} and self.scope in {OPERATOR, JOB, OBSERVED}

    @property
    def time_fold(self) -> Fold | None:
        """How the values of a step of a series become one.

        Counters only grow.
        """
        is_total = self.kind is COUNTER and self.scope in {OPERATOR, JOB}
        return LARGEST if is_total else self.fold

    @property
    def prometheus(self) -> str:
        """The name in Prometheus: base units, and `_total` for counters."""
        stem = self.name if self.stem is None else self.stem
        suffix = _SUFFIXES.get(self.unit)
        if suffix is not None:
            stem = _UNIT_IN_NAME.sub("", stem) + suffix
        prefix = _PREFIXES.get(self.scope, "keyscale_job_")
        return f"{prefix}{stem}_total" if self.kind is COUNTER else f"{prefix}{stem}"

    @property
    def job_prometheus(self) -> str:
        """The name in Prometheus of the job's counter."""
        return replace(self, scope=Scope.JOB).prometheus

    @property
    def scale(self) -> float:
        """The factor from the own unit to the base unit."""
        return 0.001 if self.unit in {Unit.MS, Unit.AT_MS} else 1

    @property
    def growth_help(self) -> str:
        """The meaning of the job's counter."""
        return self.help.removesuffix(".") + ", since the job was created."


_PREFIXES = {
    Scope.SUBTASK: "keyscale_subtask_",
    Scope.OPERATOR: "keyscale_operator_",
    Scope.SINK: "keyscale_sink_",
    Scope.SOURCE: "keyscale_source_",
    Scope.SPLIT: "keyscale_split_",
    Scope.DRIVER: "keyscale_driver_",
    Scope.CONTROL_PLANE: "keyscale_",
}
_SUFFIXES = {
    Unit.MS: "_seconds",
    Unit.SECONDS: "_seconds",
    Unit.AT_MS: "_timestamp_seconds",
    Unit.BYTES: "_bytes",
    Unit.RECORDS_PER_SECOND: "_records_per_second",
    Unit.RATIO: "_ratio",
}
_UNIT_IN_NAME = re.compile(r"(_ms|_seconds|_bytes|_size|_ratio|_rate|_records_per_second)$")

_RECORDS = "Records"
_BAD_RECORDS = "Late, dead-letter and lost records"


def _part(name: str, label: str, text: str) -> Metric:
    return Metric(name, GAUGE, BATCH, Unit.MS, text, label=label, is_scraped=False)


BATCH_PARTS = (
    _part(
        "wait_ms", "Waiting for input", "Time from the end of the previous batch until Spark found the batch's input."
    ),
    _part("plan_ms", "Planning", "Time to append the batch's plan to the log in the object store."),
    _part(
        "spark_ms",
        "Spark",
        "Time that Spark needed for itself: to plan and schedule, to read the sources and to move records to subtasks.",
    ),
    _part("function_ms", "Function", "Time in the operators' functions, with their reads and writes of state."),
    _part("state_ms", "State", "Time to open the state and to apply the batch's changes to it."),
    _part("store_ms", "Object store", "Time in which tasks waited for the object store."),
    _part("sink_ms", "Sinks", "Time in which the sinks took the rows."),
    _part("append_ms", "Commit", "Time to append the commit to the log in the object store."),
    _part("publish_ms", "Publication", "Time after the commit to publish the output."),
)
"""The parts of a batch's time, in their order; they add up to the time since the previous batch."""

METRICS = (
    *BATCH_PARTS,
    # --- subtasks, in the last batch
    Metric("read_records", GAUGE, SUBTASK, Unit.RECORDS, "Records read."),
    Metric("write_records", GAUGE, SUBTASK, Unit.RECORDS, "Records emitted.", is_scraped=False),
    Metric(
        "busy_ratio",
        GAUGE,
        SUBTASK,
        Unit.RATIO,
        "Share of the time since the previous batch in which the subtask was processing, not waiting for records or for"
        " the reader of its rows.",
    ),
    Metric(
        "input_ms",
        GAUGE,
        SUBTASK,
        Unit.MS,
        "Time waiting for records, and so for the shuffle.",
        is_fractional=True,
    ),
    Metric(
        "open_ms", GAUGE, SUBTASK, Unit.MS, "Time to open or rebuild the state.", is_fractional=True, is_scraped=False
    ),
    Metric("process_ms", GAUGE, SUBTASK, Unit.MS, "Time to run the operator.", is_fractional=True, is_scraped=False),
    Metric(
        "output_ms",
        GAUGE,
        SUBTASK,
        Unit.MS,
        "Time waiting for the reader of its rows, or writing them to the sink.",
        is_fractional=True,
    ),
    Metric(
        "store_ms",
        GAUGE,
        SUBTASK,
        Unit.MS,
        "Time waiting for the object store; the other times do not include it.",
        is_fractional=True,
    ),
    Metric(
        "finish_ms",
        GAUGE,
        SUBTASK,
        Unit.MS,
        "Time to apply the changes to the local state.",
        is_fractional=True,
        is_scraped=False,
    ),
    Metric(
        "processor_ms",
        GAUGE,
        SUBTASK,
        Unit.MS,
        "Processor time of the Python worker, with all threads, while the task ran.",
        is_fractional=True,
        is_scraped=False,
    ),
    Metric(
        "processor_wait_ms",
        GAUGE,
        SUBTASK,
        Unit.MS,
        "Time in which the task was ready to run and waited for a processor of its host.",
        is_fractional=True,
    ),
    Metric(
        "largest_key_group",
        GAUGE,
        SUBTASK,
        Unit.COUNT,
        "The key group with the most of the subtask's records.",
        is_optional=True,
        is_scraped=False,
    ),
    Metric(
        "largest_key_group_records",
        GAUGE,
        SUBTASK,
        Unit.RECORDS,
        "Number of records of that key group; read_records has the total.",
        is_scraped=False,
    ),
    Metric("state_bytes", GAUGE, SUBTASK, Unit.BYTES, "Estimated size of the state on its host."),
    # --- operators, since their driver started
    Metric("read_records", COUNTER, OPERATOR, Unit.RECORDS, "Records read since the driver started."),
    Metric(
        "write_records", COUNTER, OPERATOR, Unit.RECORDS, "Records emitted to all outputs since the driver started."
    ),
    Metric(
        "read_records_per_second",
        GAUGE,
        OPERATOR,
        Unit.RECORDS_PER_SECOND,
        "Rate of records read, including waits for input; None if the driver is too old.",
        is_optional=True,
    ),
    Metric(
        "write_records_per_second",
        GAUGE,
        OPERATOR,
        Unit.RECORDS_PER_SECOND,
        "Rate of records emitted, including waits for input; None if the driver is too old.",
        is_optional=True,
    ),
    Metric(
        "watermark_ms",
        GAUGE,
        OPERATOR,
        Unit.AT_MS,
        "Event time up to which timers have fired.",
        is_optional=True,
    ),
    Metric(
        "watermark_lag_ms",
        GAUGE,
        OPERATOR,
        Unit.MS,
        "How far the watermark is behind the clock.",
        is_optional=True,
    ),
    Metric(
        "event_time_lag_ms",
        GAUGE,
        OPERATOR,
        Unit.MS,
        "How far the latest event was behind the clock when its batch was committed.",
        is_optional=True,
    ),
    # --- sources
    Metric("lag_records", GAUGE, SOURCE, Unit.RECORDS, "Records of the source that no committed batch has."),
    Metric("lag_records", GAUGE, SPLIT, Unit.RECORDS, "Records of the split that no committed batch has."),
    # --- drivers, since they started or over their last batches
    Metric("batches", COUNTER, DRIVER, Unit.COUNT, "Batches committed."),
    Metric(
        "input_batches",
        COUNTER,
        DRIVER,
        Unit.COUNT,
        "Batches with input, not of timers alone; None if the driver is too old.",
        is_optional=True,
    ),
    *(
        replace(part, name=f"batch_{part.name}", scope=DRIVER, label="", is_fractional=True, is_scraped=True)
        for part in BATCH_PARTS
    ),
    Metric(
        "lag_growth",
        GAUGE,
        DRIVER,
        Unit.RECORDS_PER_SECOND,
        "Growth of the number of waiting records over the last minute; negative while the job catches up.",
        is_optional=True,
    ),
    Metric(
        "lag_age_ms",
        GAUGE,
        DRIVER,
        Unit.MS,
        "Age of the number of waiting records; 0 while it is below ten seconds.",
        is_optional=True,
    ),
    Metric(
        "garbage_collection_ratio",
        GAUGE,
        DRIVER,
        Unit.RATIO,
        "Share of the tasks' time in which their JVMs collected garbage, over the last ten seconds with tasks; unknown"
        " before.",
        is_optional=True,
    ),
    Metric("subtask_runs", COUNTER, DRIVER, Unit.COUNT, "Number of tasks with state."),
    Metric(
        "subtask_runs_moved",
        COUNTER,
        DRIVER,
        Unit.COUNT,
        "Tasks that ran on another executor than the subtask's previous task.",
    ),
    Metric(
        "subtask_runs_rebuilt",
        COUNTER,
        DRIVER,
        Unit.COUNT,
        "Tasks that rebuilt their state from the object store.",
    ),
    Metric(
        "state_bytes",
        GAUGE,
        DRIVER,
        Unit.BYTES,
        "Estimated size of the state on its hosts after the last batch; 0 before the first batch. The files of a"
        " checkpoint have another size, its state_size.",
    ),
    Metric("jvm_heap_bytes", GAUGE, DRIVER, Unit.BYTES, "Used heap of the driver's JVM.", is_optional=True),
    Metric(
        "process_memory_bytes",
        GAUGE,
        DRIVER,
        Unit.BYTES,
        "Resident memory of the driver's processes: its JVM, its Python, and the workers on its host.",
        is_optional=True,
    ),
    Metric(
        "process_ms",
        COUNTER,
        DRIVER,
        Unit.MS,
        "Processor time of the driver's running processes: its JVM, its Python, and the workers on its host.",
        is_optional=True,
    ),
    Metric(
        "host_load_ratio",
        GAUGE,
        DRIVER,
        Unit.RATIO,
        "Load of the driver's host over the last minute, per processor; above 1, processes wait for processors.",
        is_optional=True,
    ),
    Metric(
        "source_retention_ms",
        GAUGE,
        DRIVER,
        Unit.MS,
        "How long the job's sources keep records, the shortest time of all that tell.",
        is_optional=True,
    ),
    # --- jobs
    Metric(
        "input_rate",
        GAUGE,
        JOB,
        Unit.RECORDS_PER_SECOND,
        "Records read per second over the last minute, with waits.",
        RATE,
        reported_as="input_records_per_second",
        source="input_records",
        chart=_RECORDS,
        label="Input",
    ),
    Metric(
        "output_rate",
        GAUGE,
        JOB,
        Unit.RECORDS_PER_SECOND,
        "Records emitted per second.",
        RATE,
        source="output_records",
        chart=_RECORDS,
        label="Output",
    ),
    Metric(
        "processed_rate",
        GAUGE,
        JOB,
        Unit.RECORDS_PER_SECOND,
        "Processed records per second while batches run.",
        MEAN,
        reported_as="processed_records_per_second",
        chart="Records it could process",
        label="Could process",
    ),
    Metric(
        "busy_ratio",
        GAUGE,
        JOB,
        Unit.RATIO,
        "Share of the time in which batches run.",
        MEAN,
        reported_as="busy_ratio",
        weighed_by="busy_samples",
    ),
    Metric(
        "lag_records",
        GAUGE,
        JOB,
        Unit.RECORDS,
        "Records in the sources that no committed batch has; the last known number if the job does not run; null if the"
        " sources cannot count.",
        LARGEST,
        reported_as="pending_records",
        is_optional=True,
        chart="Records waiting",
        label="Waiting",
    ),
    Metric(
        "lag_ms",
        GAUGE,
        JOB,
        Unit.MS,
        "How far the latest event of the slowest operator was behind the clock when its batch was committed; null"
        " without event time, and if events are ahead of the clock.",
        LARGEST,
        chart="Lag",
        label="Lag",
        is_held=True,
    ),
    Metric(
        "batch_duration_ms",
        GAUGE,
        JOB,
        Unit.MS,
        "Time to run a batch and to append its commit to the log.",
        MEAN,
        reported_as="batch_duration_ms",
        is_fractional=True,
        chart="Batch duration",
        label="Batch",
    ),
    Metric(
        "watermark_ms",
        GAUGE,
        JOB,
        Unit.AT_MS,
        "Event time that all operators with a watermark have reached.",
        LATEST,
        chart="Watermark behind the clock",
        label="Lag",
    ),
    Metric(
        "state_size",
        GAUGE,
        OBSERVED,
        Unit.BYTES,
        "Bytes of the whole state in the latest completed checkpoint or savepoint; null before the first.",
        LATEST,
        chart="State",
        label="State",
        is_held=True,
    ),
    Metric(
        "checkpoint_duration_ms",
        GAUGE,
        OBSERVED,
        Unit.MS,
        "Duration of the latest completed checkpoint or savepoint, from the trigger to the last acknowledgement.",
        LARGEST,
        stem="last_checkpoint_duration_ms",
        chart="Checkpoint duration",
        label="Checkpoint",
        is_held=True,
    ),
    Metric("input_records", COUNTER, JOB, Unit.RECORDS, "Records read.", SUM, in_log=True, reported_as="input_records"),
    Metric(
        "output_records",
        COUNTER,
        JOB,
        Unit.RECORDS,
        "Records emitted.",
        SUM,
        in_log=True,
        reported_as="output_records",
    ),
    Metric(
        "late_records",
        COUNTER,
        OPERATOR,
        Unit.RECORDS,
        "Late records, and records without event time: dropped or sent to a side output.",
        SUM,
        of_job=True,
        in_log=True,
        chart=_BAD_RECORDS,
        label="Late",
    ),
    Metric(
        "dead_letters",
        COUNTER,
        OPERATOR,
        Unit.RECORDS,
        "Records that functions failed on, and rows that the systems of sinks would have refused, which became dead"
        " letters.",
        SUM,
        of_job=True,
        in_log=True,
        chart=_BAD_RECORDS,
        label="Dead letters",
    ),
    Metric(
        "dead_letters",
        COUNTER,
        SINK,
        Unit.RECORDS,
        "Rows that the sink's system would have refused and that became dead letters, since the driver started; null if"
        " the sink diverts no rows.",
        is_optional=True,
    ),
    Metric(
        "write_ms",
        GAUGE,
        SINK,
        Unit.MS,
        "Time that the sink took in the last batch: to write the rows, and to publish them.",
        is_fractional=True,
    ),
    Metric(
        "lost_records",
        COUNTER,
        JOB,
        Unit.RECORDS,
        "Records that sources lost before the job could read them.",
        SUM,
        reported_as="lost_records",
        chart=_BAD_RECORDS,
        label="Lost by sources",
    ),
    # --- jobs, as the control plane sees them
    Metric(
        "checkpointed_size",
        GAUGE,
        OBSERVED,
        Unit.BYTES,
        "Bytes that the latest completed checkpoint has added.",
        LARGEST,
        stem="last_checkpoint_written",
    ),
    Metric(
        "checkpoint_duration_min_ms",
        GAUGE,
        OBSERVED,
        Unit.MS,
        "Duration of the fastest checkpoint.",
        SMALLEST,
        is_scraped=False,
    ),
    Metric(
        "checkpoint_duration_sum_ms",
        COUNTER,
        OBSERVED,
        Unit.MS,
        "Duration of all checkpoints together.",
        SUM,
        is_scraped=False,
    ),
    Metric(
        "checkpoints_completed",
        COUNTER,
        OBSERVED,
        Unit.COUNT,
        "Completed checkpoints and savepoints.",
        SUM,
        is_scraped=False,
    ),
    Metric(
        "checkpoints_failed",
        COUNTER,
        OBSERVED,
        Unit.COUNT,
        "Failed checkpoints and savepoints.",
        SUM,
        is_scraped=False,
    ),
    Metric(
        "checkpointed_bytes",
        COUNTER,
        OBSERVED,
        Unit.BYTES,
        "Bytes that checkpoints have added.",
        SUM,
        is_scraped=False,
    ),
    Metric("restarts", COUNTER, OBSERVED, Unit.COUNT, "Restarts after failures.", SUM),
    Metric(
        "status",
        GAUGE,
        OBSERVED,
        Unit.COUNT,
        "1 for the status that the job has.",
        labels=("status",),
    ),
    Metric(
        "wanted",
        GAUGE,
        OBSERVED,
        Unit.COUNT,
        "1 if the job is to run and has not failed or finished; else 0.",
    ),
    Metric(
        "up",
        GAUGE,
        OBSERVED,
        Unit.COUNT,
        "1 if the job's driver runs the job and has reported within 15 seconds; else 0.",
    ),
    Metric(
        "health_score",
        GAUGE,
        OBSERVED,
        Unit.COUNT,
        "Health of the job: 100 without a reason, at least 0; unknown while no driver reports.",
    ),
    Metric(
        "heartbeat_age_ms",
        GAUGE,
        OBSERVED,
        Unit.MS,
        "Time since the last report of the job's driver; unknown before its first report.",
    ),
    Metric(
        "last_checkpoint_age_ms",
        GAUGE,
        OBSERVED,
        Unit.MS,
        "Time since the last completed checkpoint or savepoint of a wanted job; before the first, since its driver"
        " runs.",
    ),
    Metric(
        "restorable_until_at_ms",
        GAUGE,
        OBSERVED,
        Unit.AT_MS,
        "Time until which the sources keep all records after the newest checkpoint or savepoint; unknown if no source"
        " tells how long it keeps records.",
    ),
    Metric(
        "last_checkpoint_failed",
        GAUGE,
        OBSERVED,
        Unit.COUNT,
        "1 if the newest checkpoint or savepoint that has ended failed; else 0.",
    ),
    Metric("lag_records_at_ms", GAUGE, OBSERVED, Unit.AT_MS, "Time at which lag_records was counted."),
    Metric("checkpoint_interval_ms", GAUGE, OBSERVED, Unit.MS, "Time between the starts of two checkpoints, as set."),
    Metric(
        "last_change_downtime_ms",
        GAUGE,
        OBSERVED,
        Unit.MS,
        "Downtime of the job's newest rescale, upgrade or rollback that has resumed it.",
        stem="last_operation_downtime_ms",
    ),
    Metric(
        "autoscaler_verdict",
        GAUGE,
        OBSERVED,
        Unit.COUNT,
        "1 for the verdict of the autoscaler's latest decision; unknown while it is disabled.",
        labels=("verdict",),
    ),
    Metric(
        "autoscaler_parallelism",
        GAUGE,
        OBSERVED,
        Unit.COUNT,
        "Parallelism that the autoscaler wants; unknown while it is disabled.",
    ),
    # --- the control plane, since the replica started
    Metric(
        "requests",
        COUNTER,
        CONTROL_PLANE,
        Unit.COUNT,
        "Requests that the replica has answered.",
        labels=("method", "route", "status"),
    ),
    Metric(
        "request_duration",
        HISTOGRAM,
        CONTROL_PLANE,
        Unit.SECONDS,
        "Time to answer a request; event streams are left out.",
        labels=("route",),
    ),
    Metric(
        "errors",
        COUNTER,
        CONTROL_PLANE,
        Unit.COUNT,
        "Errors in answers, by their code in the error catalogue.",
        labels=("code",),
    ),
    Metric(
        "autoscaler_moves",
        COUNTER,
        CONTROL_PLANE,
        Unit.COUNT,
        "Rescales that the autoscaler has begun.",
        labels=("verdict",),
    ),
    Metric(
        "database_errors", COUNTER, CONTROL_PLANE, Unit.COUNT, "Statements and connections of requests that failed."
    ),
    Metric("database_duration", HISTOGRAM, CONTROL_PLANE, Unit.SECONDS, "Time of a statement in the database."),
    Metric("store_errors", COUNTER, CONTROL_PLANE, Unit.COUNT, "Checks of the object store that failed."),
    Metric(
        "store_duration",
        HISTOGRAM,
        CONTROL_PLANE,
        Unit.SECONDS,
        "Time of a check of the object store: it reads and writes.",
    ),
    Metric("database_up", GAUGE, CONTROL_PLANE, Unit.COUNT, "1 if the database answers; else 0."),
    Metric("store_up", GAUGE, CONTROL_PLANE, Unit.COUNT, "1 if the object store answers; else 0."),
    Metric(
        "looks",
        COUNTER,
        CONTROL_PLANE,
        Unit.COUNT,
        "Polls of the database for the changes that event streams tell.",
    ),
    Metric("streams", GAUGE, CONTROL_PLANE, Unit.COUNT, "Open event streams."),
    Metric("leader", GAUGE, CONTROL_PLANE, Unit.COUNT, "1 if the replica leads; else 0."),
    Metric("leader_age", GAUGE, CONTROL_PLANE, Unit.SECONDS, "Time since the present leader was elected."),
    Metric("leader_silence", GAUGE, CONTROL_PLANE, Unit.SECONDS, "Time since the leader's last sign of life."),
    Metric(
        "jobs_set_aside",
        GAUGE,
        CONTROL_PLANE,
        Unit.COUNT,
        "Jobs whose steps fail, so that the leader pauses between its tries; known to the leader only.",
    ),
    Metric(
        "drivers_silent",
        GAUGE,
        CONTROL_PLANE,
        Unit.COUNT,
        "Drivers of wanted jobs without a report for 15 seconds.",
    ),
    Metric("starts_waiting", GAUGE, CONTROL_PLANE, Unit.COUNT, "Starts of drivers that wait for their turn."),
    Metric(
        "driver_starts",
        COUNTER,
        CONTROL_PLANE,
        Unit.COUNT,
        "Starts of drivers: by a spare driver that waited (`spare`), or by a new one (`new`).",
        labels=("way",),
    ),
    Metric("spare_drivers", GAUGE, CONTROL_PLANE, Unit.COUNT, "Spare drivers that wait for a run, or warm up."),
    Metric("scrape_duration", GAUGE, CONTROL_PLANE, Unit.SECONDS, "Time to collect these metrics."),
)


def of_scope(*scopes: Scope) -> tuple[Metric, ...]:
    """Returns the metrics of scopes, in the order of their declaration."""
    return tuple(metric for metric in METRICS if metric.scope in scopes)


LOG_COUNTERS = tuple(metric for metric in METRICS if metric.in_log)
"""The counters that the commit log keeps."""
JOB_COUNTERS = tuple(metric for metric in METRICS if metric.kind is COUNTER and (metric.of_job or metric.scope is JOB))
"""The counters of a job since it was created."""
SERIES = tuple(metric for metric in METRICS if metric.has_column)
"""The metrics whose series the database keeps, a column each."""
SHOWN_SERIES = tuple(
    metric
    for metric in METRICS
    if metric.fold not in {None, SMALLEST} and not (metric.scope is OBSERVED and metric.fold is SUM)
)
"""The series that the API and the pages show; the rest is shown per day."""
JOB_METRICS = (
    *(metric for metric in METRICS if metric.scope is JOB and metric.kind is GAUGE and metric.name != "output_rate"),
    *(metric for metric in METRICS if metric.name == "state_size"),
    *JOB_COUNTERS,
)
"""The current metrics of a job."""
REPORTED = tuple(metric for metric in METRICS if metric.scope is DRIVER or (metric.scope is JOB and metric.reported_as))
"""The numbers of a job as a whole in its driver's report."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a job's series.

    Attributes:
        title: Its title.
        kind: How its values are written: bytes, duration, number or rate.
        lines: The metrics of its lines.
    """

    title: str
    kind: str
    lines: tuple[Metric, ...]


_CHART_KINDS = {
    Unit.BYTES: "bytes",
    Unit.MS: "duration",
    Unit.AT_MS: "duration",  # shown as the time behind the clock
    Unit.RECORDS_PER_SECOND: "rate",
}


def charts() -> tuple[Chart, ...]:
    """Returns the charts of a job, in the order of declaration."""
    titles = dict.fromkeys(metric.chart for metric in SHOWN_SERIES if metric.chart is not None)
    drawn = {title: tuple(metric for metric in SHOWN_SERIES if metric.chart == title) for title in titles}
    return tuple(Chart(title, _CHART_KINDS.get(lines[0].unit, "number"), lines) for title, lines in drawn.items())
