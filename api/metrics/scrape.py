"""Collects metrics for Prometheus: of jobs, and of the control plane.

A scrape of 1,000 jobs takes a fixed number of statements. The lines are written here: the library's own objects for
samples would take most of the time.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from keyscale.db.repositories import attempts, leaders, scrapes
from keyscale.metrics import (
    CONTROL_PLANE,
    DRIVER,
    GAUGE,
    JOB_COUNTERS,
    JOB_METRICS,
    OBSERVED,
    OPERATOR,
    SINK,
    SOURCE,
    SPLIT,
    SUBTASK,
    of_scope,
)
from keyscale.vocabulary import SETTLED, AttemptStage, DesiredState, DriverState, JobStatus

from ..database_clock import shared_now_ms
from ..health.facts import HealthFacts, idle_at_ms
from ..health.faults import unsettled_failure
from ..health.health import health_of
from ..lifecycle.current_report import SILENT_MS
from ..lifecycle.gauges import KNOWN_WHILE_IDLE, REPORTED_GAUGES
from ..lifecycle.job_totals import NUMBER_MAX, user_counters
from ..lifecycle.steps import Cause
from .user_metrics import UserFamilies, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.job_scope import JobScope
    from keyscale.db.repositories.scrapes import ObservedJob
    from keyscale.metrics import Metric, Scope

    from ..control_plane.context import Context

JOBS_MAX = 5_000
"""Of more jobs, the newest are shown."""
PARTS_MAX = 100
"""Of more operators or sinks of a job, or splits of a source, the first are shown."""
_NOT_WANTED = frozenset({JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED})


class Exposed(NamedTuple):
    """A metric as Prometheus gets it.

    It is worked out once, as a scrape has thousands of samples.

    Attributes:
        name: Its name in Prometheus.
        key: Its name in the facts.
        scale: The factor from its own unit to the base unit.
        kind: How it changes.
        help: Its meaning.
        label: The name of a further label, if any.
    """

    name: str
    key: str
    scale: float
    kind: str
    help: str
    label: str | None = None


def exposed(metric: Metric, name: str | None = None) -> Exposed:
    """Returns a metric as Prometheus gets it.

    Args:
        metric: The metric.
        name: Its name in Prometheus; None: as declared.
    """
    described = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    label = metric.labels[0] if metric.labels else None
    return Exposed(name or metric.prometheus, metric.field, metric.scale, metric.kind, described, label)


class Families:
    """Samples by metric, in the order in which the metrics were declared."""

    def __init__(self, declared: Iterable[Exposed]) -> None:
        self._lines: dict[Exposed, list[str]] = {metric: [] for metric in declared}
        self._by_name = {metric.name: lines for metric, lines in self._lines.items()}

    def add(self, metric: Exposed, labels: str, value: float | None) -> None:
        """Adds a sample of a declared metric; None is unknown."""
        if value is not None:
            written = value if metric.scale == 1 else value * metric.scale
            self._by_name[metric.name].append(f"{metric.name}{labels} {written}\n")

    def text(self) -> str:
        """Returns all samples in Prometheus's text format."""
        return "".join(
            chain.from_iterable(
                (f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n", *lines)
                for metric, lines in self._lines.items()
                if lines
            )
        )


def text_of(context: Context, scope: JobScope) -> str:
    """Returns the metrics of a scope, in Prometheus's text format.

    They are the metrics of the jobs in the scope. The scope of all jobs has the control plane's own metrics
    as well, even if the database does not answer.
    """
    began_s = time.monotonic()
    at_ms = shared_now_ms()
    jobs: Sequence[ObservedJob] = ()
    gauges: dict[str, float | None] = {"database_up": 1}
    try:
        with context.reads() as session:
            jobs = scrapes.of_scope(session, scope, limit=JOBS_MAX)
            if scope.is_everything:
                gauges |= _gauges_of_database(session, jobs, at_ms)
    except SQLAlchemyError:
        if not scope.is_everything:
            raise
        gauges = {"database_up": 0}
    text = of_jobs(jobs, at_ms)
    if not scope.is_everything:
        return text
    gauges |= {
        "store_up": int(context.store.problem() is None),
        "streams": context.change_feed.streams,
        "leader": int(context.pulse.role == "leader"),
        "jobs_set_aside": context.pulse.quarantined if context.pulse.role == "leader" else None,
        "spare_drivers": len(context.launcher.spares.living()),
        "scrape_duration": time.monotonic() - began_s,
    }
    families = Families(_OWN)
    for metric in _OWN:
        families.add(metric, "", gauges.get(metric.key))
    return text + families.text() + context.metrics.text()


def _gauges_of_database(session: Session, jobs: Iterable[ObservedJob], at_ms: int) -> dict[str, float | None]:
    leader = leaders.read(session)
    return {
        "leader_age": None if leader is None else max(0, at_ms - leader.elected_at_ms) / 1000,
        "leader_silence": None if leader is None else max(0, leader.silent_ms) / 1000,
        "drivers_silent": sum(is_wanted(job) and _is_silent(job, at_ms) for job in jobs),
        "starts_waiting": len(attempts.list_unlaunched(session)),
    }


def of_jobs(jobs: Iterable[ObservedJob], at_ms: int) -> str:
    """Returns the metrics of jobs in Prometheus's text format. Pure."""
    families, of_users = Families(_OF_JOBS), UserFamilies()
    for job in jobs:
        inner, reported = f'job_id="{job.id}",job_name="{escaped(job.name)}"', job.metrics or {}
        _add_job(families, job, inner, at_ms)
        gauges = reported.get("user_gauges", ()) if is_reported(job, at_ms) else ()
        series = [*user_counters(job.totals_before, reported), *gauges]
        of_users.add(series, reported.get("user_help") or {}, inner)
    return families.text() + of_users.text()


def _add_job(families: Families, job: ObservedJob, inner: str, at_ms: int) -> None:
    add, labels = families.add, f"{{{inner}}}"
    reported = job.metrics or {}
    is_current = is_reported(job, at_ms)
    values = _observed(job, is_current=is_current, at_ms=at_ms)
    for metric in _OBSERVED:
        value = values[metric.key]
        if metric.label is None:
            add(metric, labels, value)
        elif value is not None:
            add(metric, f'{{{inner},{metric.label}="{value}"}}', 1)
    for metric, total in zip(_COUNTERS, _totals(job, reported), strict=True):
        add(metric, labels, total)
    waiting = _plausible(reported.get(_WAITING.key))
    add(_WAITING, labels, (job.totals_before or {}).get("lag_records") if waiting is None else waiting)
    if not is_current:
        return
    has_run, is_idle = bool(reported.get("batches")), bool(reported.get("waits_for_input"))
    for metric in _GAUGES if has_run else _IDLE_GAUGES if is_idle else ():
        add(metric, labels, reported.get(metric.key))
    for metric in _DRIVER:
        add(metric, labels, reported.get(metric.key))
    operators = reported.get("operators", ())[:PARTS_MAX]
    add(_LAG, labels, _largest(each.get("event_time_lag_ms") for each in operators))
    add(_WATERMARK, labels, _smallest(operators, "watermark_ms"))
    for operator in operators:
        _add_operator(families, operator, f'{inner},operator="{escaped(operator["uid"])}"')
    _add_parts(families, _SINK, reported.get("sinks", ()), f"{inner},sink=")
    sources = reported.get("source_lags", ())
    _add_parts(families, _SOURCE, sources, f"{inner},source=")
    for source in sources[:PARTS_MAX]:
        most = Counter(source.get("splits")).most_common(PARTS_MAX)
        splits = [{"uid": name, "lag_records": number} for name, number in most]
        _add_parts(families, _SPLIT, splits, f'{inner},source="{escaped(source["uid"])}",split=')


def _add_parts(families: Families, metrics: Iterable[Exposed], parts: Sequence[Mapping[str, Any]], labels: str) -> None:
    for part in parts[:PARTS_MAX]:
        of_part = f'{{{labels}"{escaped(part["uid"])}"}}'
        for metric in metrics:
            families.add(metric, of_part, _plausible(part.get(metric.key)))


def _add_operator(families: Families, operator: Mapping[str, Any], inner: str) -> None:
    add, labels = families.add, f"{{{inner}}}"
    for metric in _OPERATOR:
        add(metric, labels, _plausible(operator.get(metric.key)))
    subtasks = operator.get("subtasks") or ()
    if not subtasks:
        return
    least, most = f'{{{inner},of="min"}}', f'{{{inner},of="max"}}'
    for metric in _SUBTASK:
        values = [subtask.get(metric.key, 0) for subtask in subtasks]
        add(metric, least, min(values))
        add(metric, most, max(values))


def checkpoint_age_ms(job: ObservedJob, at_ms: int) -> int | None:
    """Returns the age of a job's last checkpoint.

    Without a checkpoint it is the time that the job runs. None if the job is not to run, has not begun, or sleeps.
    """
    is_asleep = job.driver_state == DriverState.SLEEPING  # a sleeping job commits nothing
    began_ms = job.running_at_ms if job.stage is AttemptStage.ACTIVE else None
    saved_ms = began_ms if job.completed is None or job.completed.ended_at_ms is None else job.completed.ended_at_ms
    if saved_ms is not None and job.cause == Cause.WAKE:  # its snapshot had all records until then
        saved_ms = max(saved_ms, job.created_at_ms or 0)
    return max(0, at_ms - saved_ms) if is_wanted(job) and not is_asleep and saved_ms is not None else None


def _observed(job: ObservedJob, *, is_current: bool, at_ms: int) -> dict[str, Any]:
    """Returns what the control plane knows of a job, by metric."""
    completed = job.completed
    facts = health_facts(job, is_current=is_current, at_ms=at_ms)
    return {
        "state_size": completed and completed.state_size,
        "checkpoint_duration_ms": completed and completed.duration_ms,
        "checkpointed_size": completed and completed.checkpointed_size,
        "restarts": job.restarts,
        "status": job.status,
        "wanted": int(is_wanted(job)),
        "up": int(is_current),
        "health_score": health_of(facts).score,
        "restorable_until_at_ms": facts.restorable_until_at_ms,
        "lag_records_at_ms": _waiting_at_ms(job),
        "heartbeat_age_ms": None if job.heartbeat_at_ms is None else max(0, at_ms - job.heartbeat_at_ms),
        "last_checkpoint_age_ms": checkpoint_age_ms(job, at_ms),
        "last_checkpoint_failed": int(job.failed is not None and (completed is None or job.failed.id > completed.id)),
        "checkpoint_interval_ms": (job.checkpoints or {}).get("interval_ms"),
        "autoscaler_verdict": job.scaling_verdict,
        "autoscaler_parallelism": job.scaling_target,
        "last_change_downtime_ms": None if job.downtime_ms is None else max(0, job.downtime_ms),
    }


def health_facts(job: ObservedJob, *, is_current: bool, at_ms: int) -> HealthFacts:
    """Returns the facts that decide a job's health."""
    report, is_active = job.metrics or {}, job.stage is AttemptStage.ACTIVE
    unsettled = unsettled_failure(report, job.last_commit_at_ms) if is_active else None
    return HealthFacts(
        report=report,
        is_active=is_active,
        is_current=is_current,
        is_settled=job.status in SETTLED,
        failure=job.failure or unsettled,
        checkpoint_ms=job.completed and job.completed.duration_ms,
        checkpoint_timeout_ms=(job.checkpoints or {}).get("timeout_ms"),
        snapshot_at_ms=job.completed and job.completed.ended_at_ms,
        idle_at_ms=idle_at_ms(job._asdict(), report),
        at_ms=at_ms,
    )


def _waiting_at_ms(job: ObservedJob) -> int | None:
    """Returns when the records that wait were counted."""
    report = job.metrics or {}
    if _plausible(report.get("pending_records")) is not None:
        return job.heartbeat_at_ms and job.heartbeat_at_ms - int(_plausible(report.get("lag_age_ms")) or 0)
    counted_at_ms: int | None = (job.totals_before or {}).get("lag_records_at_ms")
    return counted_at_ms


def _totals(job: ObservedJob, reported: Mapping[str, Any]) -> Iterator[int]:
    """Yields the job's counters, as `job_totals.added_totals` adds them.

    Reading the report as a message would take longer than the rest of a scrape.
    """
    before, in_log = job.totals_before or {}, reported.get("counters") or {}
    parts = [*reported.get("operators", ()), *reported.get("sinks", ())]
    for metric in JOB_COUNTERS:
        known = before.get(metric.name, 0)
        if metric.name in in_log:
            total = max(known, in_log[metric.name])
        elif metric.of_job:
            total = known + max(0, sum(part.get(metric.name) or 0 for part in parts))
        else:
            total = known + max(0, reported.get(metric.field, 0))
        yield max(0, min(total, NUMBER_MAX))


def is_wanted(job: ObservedJob) -> bool:
    """Returns whether the platform is to run a job."""
    return job.desired is DesiredState.RUNNING and job.status not in _NOT_WANTED


def _is_silent(job: ObservedJob, at_ms: int) -> bool:
    """Returns whether the driver has reported before, and not for a while."""
    return job.heartbeat_at_ms is not None and at_ms - job.heartbeat_at_ms >= SILENT_MS


def is_reported(job: ObservedJob, at_ms: int) -> bool:
    """Returns whether a job's driver runs the job and has reported lately."""
    is_running = job.stage is AttemptStage.ACTIVE and job.driver_state in {DriverState.RUNNING, DriverState.SLEEPING}
    return is_running and at_ms - (job.heartbeat_at_ms or 0) < SILENT_MS


def _plausible(number: float | None) -> float | None:
    """Returns a plausible number; None for an implausible number."""
    return number if number is not None and 0 <= number < NUMBER_MAX else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in map(_plausible, values) if value is not None), default=None)


def _smallest(parts: Iterable[Mapping[str, Any]], name: str) -> float | None:
    known = [value for part in parts if (value := part.get(name)) is not None and abs(value) < NUMBER_MAX]
    return min(known, default=None)


def _exposed(*scopes: Scope) -> tuple[Exposed, ...]:
    return tuple(exposed(metric) for metric in of_scope(*scopes) if metric.is_scraped)


def _figure(name: str) -> Exposed:
    return next(exposed(metric) for metric in JOB_METRICS if metric.name == name)


_OBSERVED, _DRIVER, _OPERATOR = map(_exposed, (OBSERVED, DRIVER, OPERATOR))
_SINK, _SOURCE, _SPLIT, _SUBTASK = map(_exposed, (SINK, SOURCE, SPLIT, SUBTASK))
_COUNTERS = tuple(exposed(metric, metric.job_prometheus) for metric in JOB_COUNTERS)
_GAUGES = tuple(map(exposed, REPORTED_GAUGES))
_IDLE_GAUGES = tuple(exposed(metric) for metric in REPORTED_GAUGES if metric.name in KNOWN_WHILE_IDLE)
_LAG, _WATERMARK, _WAITING = map(_figure, ("lag_ms", "watermark_ms", "lag_records"))
_OF_JOBS = (
    *_OBSERVED,
    *_COUNTERS,
    *_GAUGES,
    *(_WAITING, _LAG, _WATERMARK),
    *(*_DRIVER, *_OPERATOR, *_SINK, *_SOURCE, *_SPLIT, *_SUBTASK),
)
"""The metrics of jobs, in their order."""
_OWN = tuple(exposed(metric) for metric in of_scope(CONTROL_PLANE) if metric.kind is GAUGE)
