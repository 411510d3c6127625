"""Turns rows of the database into the facts of a decision. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.specification import AutoscalerSettings
from keyscale.metrics import BATCH_PARTS
from keyscale.state.doors.planning import weights_of
from keyscale.state.doors.values import KeyGroupRanges
from keyscale.vocabulary import DriverState, JobStatus, OperationStatus, ScalingOutcome, ScalingVerdict

from ..health.faults import FAILURES_SPAN_MS, unsettled_failure
from ..health.slowness import COLLECTING, processor_wait
from ..lifecycle.current_report import SILENT_MS
from .decision import REMEMBERED_MS
from .facts import BatchFacts, Disturbance, DivisionFacts, Limits, MoveFacts, OperatorFacts, ScalingFacts, SleepFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keyscale.db.models import CheckpointSubtask
    from keyscale.db.repositories.scaling import Load, PastDecision, ScaledJob

RATE_MS = 60_000
"""The time over which the rate of the input is measured, unless batches are long."""
RATE_BATCHES = 3
"""The rate is measured over as many of the longest batch: records are counted when a batch commits."""
PEAK_MS = 600_000
"""The time of which the highest rate counts."""
DAY_MS = 86_400_000
_MINUTE_MS = 60_000


def facts_of(
    job: ScaledJob,
    loads: Sequence[Load],
    past: Sequence[PastDecision],
    *,
    core_ms: int,
    parallelism_max: int,
    at_ms: int,
    division: DivisionFacts | None = None,
) -> ScalingFacts:
    """Returns the facts of a job.

    Args:
        job: The job.
        loads: Its loads of the last minutes, in the order of time.
        past: Its recent decisions, the newest first.
        core_ms: Parallelism by time, since midnight.
        parallelism_max: The platform's limit.
        at_ms: The present time.
        division: How its key groups are divided by size, if they are.
    """
    settings, report = settings_of(job.spec), job.metrics or {}
    parallelism = job.parallelism or job.spec["parallelism"]
    slots = job.slots or job.spec.get("parallelism_limit") or 0
    most = settings.parallelism_max or max(slots, parallelism)  # an executor may have been away when slots were counted
    most = min(most, parallelism_max, job.max_parallelism)
    disturbed_until_ms = max((each.confirmed_at_ms for each in past if each.verdict.is_disturbance), default=0)
    batches = batches_of(report, disturbed_until_ms)
    longest_ms = max((each.duration_ms for each in batches), default=0.0)
    rates = rates_of(loads, max(RATE_MS, RATE_BATCHES * longest_ms))
    return ScalingFacts(
        at_ms=at_ms,
        parallelism=parallelism,
        key_groups=job.max_parallelism,
        limits=Limits(
            min(settings.parallelism_min, most),
            most,
            is_excluded=any(_is_within(each, at_ms) for each in settings.excluded_hours),
            affordable=_affordable(settings.core_hours_per_day, core_ms, at_ms),
        ),
        batches=batches,
        operators=operators_of(report),
        rate=rates[-1] if rates else None,
        rate_peak=max(rates, default=0.0),
        observed_ms=loads[-1].at_ms - loads[0].at_ms if loads else 0,
        backlog=report.get("pending_records"),
        catch_up_ms=settings.catch_up_ms,
        splits=max((len(each.get("splits") or ()) for each in report.get("source_lags") or ()), default=0) or None,
        processor_wait=processor_wait(report.get("operators") or ()),
        batch_interval_ms=job.spec.get("batch_interval_ms") or 0,
        division=division,
        batch_limit=past[0].batch_limit if past else None,
        disturbance=disturbance_of(job, at_ms),
        sleep=sleep_of(settings.sleep_after_ms, job, at_ms),
        moves=moves_of(past, at_ms),
    )


def division_of(parts: Sequence[CheckpointSubtask], key_groups: int) -> DivisionFacts | None:
    """Returns how key groups were divided at a checkpoint.

    None if the checkpoint does not know the sizes of all key groups.

    Args:
        parts: The parts of the checkpoint, by subtask.
        key_groups: The number of key groups.
    """
    entries, size_bytes = [0] * key_groups, [0] * key_groups
    for part in parts:
        span = range(part.key_group_start, part.key_group_end + 1)
        if len(part.key_group_entries) != len(span) or len(part.key_group_bytes) != len(span):
            return None
        for group, count, size in zip(span, part.key_group_entries, part.key_group_bytes, strict=True):
            entries[group] += count
            size_bytes[group] += size
    starts = sorted({part.key_group_start for part in parts})
    return DivisionFacts(KeyGroupRanges(key_groups, tuple(starts)), weights_of(entries, size_bytes)) if parts else None


def sleep_of(after_ms: int | None, job: ScaledJob, at_ms: int) -> SleepFacts | None:
    """Returns whether a job without input can sleep."""
    report = job.metrics or {}
    if after_ms is None or not report.get("waits_for_input") or job.restored_at_ms is None:
        return None
    inputs_ms = [each["at_ms"] for each in report.get("recent_batches") or () if each["input_records"] > 0]
    due_ms = report.get("timers_due_at_ms")
    return SleepFacts(
        after_ms,
        at_ms - max([job.restored_at_ms, *inputs_ms]),
        report.get("unwatched") or () if report.get("can_sleep") else None,
        None if due_ms is None else due_ms - at_ms,
    )


def settings_of(spec: Mapping[str, Any]) -> AutoscalerSettings:
    """Returns the settings of the autoscaler in a specification."""
    return AutoscalerSettings.model_validate(spec.get("autoscaler") or {})


def batches_of(report: Mapping[str, Any], disturbed_until_ms: int = 0) -> tuple[BatchFacts, ...]:
    """Returns the batches with input of a report.

    The first batch of an attempt is left out: it starts Spark and Python, or generates code. A batch that began in a
    disturbance shows how long the disturbance took, and is left out, too.
    """
    recent: Sequence[Mapping[str, Any]] = report.get("recent_batches") or ()
    is_whole = int(report.get("batches") or 0) > len(recent)  # the recent batches lack the first batch
    return tuple(
        BatchFacts(
            batch["input_records"],
            spark_ms=batch["spark_ms"],
            log_ms=batch["plan_ms"] + batch["append_ms"],
            work_ms=batch["function_ms"] + batch["state_ms"],
            store_ms=batch["store_ms"],
            sink_ms=batch["sink_ms"] + batch["publish_ms"],
        )
        for batch in recent[0 if is_whole else 1 :]
        if batch["input_records"] > 0 and _began_at_ms(batch) > disturbed_until_ms
    )


def _began_at_ms(batch: Mapping[str, Any]) -> float:
    parts_ms = sum(batch[part.name] for part in BATCH_PARTS if part.name != "wait_ms")
    return float(batch["at_ms"] - parts_ms)


def operators_of(report: Mapping[str, Any]) -> tuple[OperatorFacts, ...]:
    """Returns how the work of the last batch was spread."""
    return tuple(
        OperatorFacts(
            operator["uid"],
            sum(float(each.get(name) or 0) for each in subtasks for name in ("open_ms", "process_ms", "finish_ms")),
            tuple(int(each.get("read_records") or 0) for each in subtasks),
            {int(each["key_group"]): int(each["records"]) for each in operator.get("key_groups") or ()},
        )
        for operator in report.get("operators") or ()
        if (subtasks := operator.get("subtasks") or ())
    )


def rates_of(loads: Sequence[Load], span_ms: float = RATE_MS) -> list[float]:
    """Returns the records that arrived per second, over each span of time.

    What arrives is read, or waits. A moment at which the sources did not say what waits tells nothing, unless they
    never do.
    """
    loads = [each for each in loads if each.lag_records is not None] or loads
    rates = []
    for at, later in enumerate(loads):
        earlier = next((each for each in loads[:at] if later.at_ms - each.at_ms <= span_ms), None)
        if earlier is None or later.at_ms - earlier.at_ms < RATE_MS / 2:
            continue
        arrived = later.input_records - earlier.input_records
        if later.lag_records is not None and earlier.lag_records is not None:
            arrived += later.lag_records - earlier.lag_records
        rates.append(max(0.0, 1000 * arrived / (later.at_ms - earlier.at_ms)))
    return rates


def disturbance_of(job: ScaledJob, at_ms: int) -> Disturbance | None:
    """Returns what hides how fast a job is."""
    report = job.metrics or {}
    if (failed := _failure(job, report, at_ms)) is not None:
        return failed
    if (idle := _not_running(job, at_ms)) is not None:
        return idle
    if report.get("store_away_since_ms") is not None:
        return Disturbance(ScalingVerdict.OUTAGE, "the object store does not answer")
    if (sink := report.get("sink_outage")) is not None:
        return Disturbance(ScalingVerdict.OUTAGE, f"sink {sink['uid']} does not answer")
    collecting = float(report.get("garbage_collection_ratio") or 0)
    if collecting >= COLLECTING:
        return Disturbance(
            ScalingVerdict.GARBAGE_COLLECTION, f"the JVMs collect garbage for {collecting:.0%} of the tasks' time"
        )
    return None


def _not_running(job: ScaledJob, at_ms: int) -> Disturbance | None:
    is_current = job.heartbeat_at_ms is not None and at_ms - job.heartbeat_at_ms < SILENT_MS
    if job.driver_state == DriverState.SLEEPING and is_current:  # the status follows
        return Disturbance(ScalingVerdict.SLEEP, "the job sleeps until its sources have records")
    if job.status is not JobStatus.RUNNING or job.driver_state != DriverState.RUNNING or not is_current:
        return Disturbance(ScalingVerdict.NOT_RUNNING, "no driver runs the job at the moment")
    return None


def _failure(job: ScaledJob, report: Mapping[str, Any], at_ms: int) -> Disturbance | None:
    times_ms = (report.get("failures") or {}).get("times_ms") or ()
    failure = job.failure or unsettled_failure(report, job.last_commit_at_ms)
    if failure is None and not any(at_ms - each < FAILURES_SPAN_MS for each in times_ms):
        return None
    failure = failure or report.get("last_failure") or {}
    code = failure.get("code", "unknown")
    return Disturbance(
        ScalingVerdict.FAILING, f"the job has failed within the last {FAILURES_SPAN_MS // 60_000} minutes: {code}"
    )


def moves_of(past: Iterable[PastDecision], at_ms: int) -> tuple[MoveFacts, ...]:
    """Returns the moves among decisions, the newest first.

    They are the last move, and the moves of the last hour.
    """
    moves: list[MoveFacts] = []
    for each in past:
        if each.operation_id is None or each.outcome is None:
            continue
        ended_at_ms = each.operation_ended_at_ms or each.confirmed_at_ms
        if moves and at_ms - ended_at_ms >= REMEMBERED_MS:
            continue
        moves.append(
            MoveFacts(
                ended_at_ms,
                each.parallelism,
                each.target,
                outcome_of(each),
                each.work_ms_before or 0.0,
                each.work_ms_expected or 0.0,
            )
        )
    return tuple(moves)


def outcome_of(move: PastDecision) -> ScalingOutcome:
    """Returns the outcome of a move.

    The move has failed if its operation has failed.
    """
    assert move.outcome is not None  # noqa: S101 - it is a move
    has_failed = move.operation_status in {
        OperationStatus.FAILED,
        OperationStatus.ROLLED_BACK,
        OperationStatus.CANCELLED,
    }
    return ScalingOutcome.FAILED if has_failed else move.outcome


def is_under_way(past: Iterable[PastDecision]) -> bool:
    """Returns whether the operation of a move has not ended.

    The operation may wait for an approval.
    """
    return any(each.operation_status is not None and not each.operation_status.has_ended for each in past)


def shown(facts: ScalingFacts) -> dict[str, Any]:
    """Returns the facts as a decision stores and shows them."""
    count = max(1, len(facts.batches))
    parts = ("records", "spark_ms", "log_ms", "work_ms", "store_ms", "sink_ms")
    limits = facts.limits
    return {
        "input_records_per_second": None if facts.rate is None else round(facts.rate, 1),
        "peak_records_per_second": round(facts.rate_peak, 1),
        "lag_records": facts.backlog,
        "batch": {name: round(sum(getattr(each, name) for each in facts.batches) / count, 1) for name in parts},
        "batch_limit": facts.batch_limit,
        "splits": facts.splits,
        "processor_wait_ratio": round(facts.processor_wait, 3),
        "parallelism_min": limits.parallelism_min,
        "parallelism_max": limits.parallelism_max,
        "affordable_parallelism": limits.affordable,
    }


def _is_within(hours: str, at_ms: int) -> bool:
    """Returns whether a time is in a span of each day.

    The span may cross midnight.
    """
    begin, end = (int(each[:2]) * 60 + int(each[3:]) for each in hours.split("-"))
    minute = at_ms % DAY_MS // _MINUTE_MS
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


def _affordable(core_hours: float | None, used_ms: int, at_ms: int) -> int | None:
    """Returns the largest parallelism that the rest of the day's budget carries."""
    if core_hours is None:
        return None
    left_ms = core_hours * 3_600_000 - used_ms
    return max(0, int(left_ms / (DAY_MS - at_ms % DAY_MS)))
