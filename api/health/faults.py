"""What has failed or does not answer.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.state.doors.objects import StoreUnavailableError
from keyscale.units import counted, duration_text

from .schemas import HealthReasonAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .facts import HealthFacts

FAILURES_MIN = 3
"""As many failures within the span are too many."""
FAILURES_SPAN_MS = 600_000
CHECKPOINT_SHARE_MAX = 0.7
"""A checkpoint that takes a larger share of its timeout is near it."""

FAULT_REPORT = (
    "store_away_since_ms",
    "sink_outage",
    "lost_records",
    "lost_records_since_ms",
    "clean_up",
    "failures",
    "lag_age_ms",
    "last_failure",
    "source_retention_ms",
)
"""The parts of a driver's report that faults follow from."""
RETENTION_SHARE_MAX = 0.75
"""A newest snapshot of a larger share of the sources' retention is near its end."""


def unsettled_failure(report: Mapping[str, Any], last_commit_at_ms: int | None) -> Mapping[str, Any] | None:
    """Returns the failure that the restarted driver has not yet recovered from.

    It has recovered once it has committed a batch.
    """
    failure: Mapping[str, Any] | None = report.get("last_failure")
    times_ms = (report.get("failures") or {}).get("times_ms")
    if failure is None or not times_ms:
        return None
    is_over = last_commit_at_ms is not None and last_commit_at_ms >= times_ms[-1]
    return None if is_over else failure


def faults_of(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    """Yields one reason per fault."""
    if facts.failure is not None:
        yield HealthReasonAnswer(
            code=facts.failure["code"],
            message=facts.failure["message"],
            advice=facts.failure.get("advice"),
            severity=100 if facts.is_settled else 95,
            since_ms=facts.ended_at_ms if facts.is_settled else None,
        )
    if (wait := facts.start_wait) is not None:
        yield HealthReasonAnswer(
            code="START_WAITS",
            message=f"the start waits for its turn, in place {wait.place} of {wait.count}: other drivers start first",
            since_ms=wait.since_ms,
            advice="KEYSCALE_STARTS_AT_ONCE sets how many drivers start at once on a host.",
            severity=10,
        )
    if facts.is_active:
        yield from _reported_faults(facts.report)
    if not facts.is_settled:
        yield from _repeated_failures(facts)
    yield from _slow_checkpoint(facts)
    if not facts.is_settled:
        yield from _restorable_soon_over(facts)


def _reported_faults(report: Mapping[str, Any]) -> Iterator[HealthReasonAnswer]:
    if (since_ms := report.get("store_away_since_ms")) is not None:
        yield HealthReasonAnswer(
            code=StoreUnavailableError.code,
            message="the object store does not answer; batches wait",
            since_ms=since_ms,
            advice=StoreUnavailableError.advice,
            severity=90,
        )
    if (sink := report.get("sink_outage")) is not None:
        yield HealthReasonAnswer(
            code="SINK_UNAVAILABLE",
            message=f"sink {sink['uid']} does not answer; batches wait: {sink['reason']}",
            since_ms=sink["since_ms"],
            advice="Start the sink's system, or make it reachable; the batch continues by itself.",
            severity=90,
        )
    if (since_ms := report.get("lost_records_since_ms")) is not None:
        yield HealthReasonAnswer(
            code="SOURCE_RECORDS_LOST",
            message=f"the job has skipped {counted(report['lost_records'], 'record')} that its sources had lost",
            since_ms=since_ms,
            advice="Keep records for longer than the job may lag or be stopped.",
            severity=50,
        )
    clean_up = report.get("clean_up") or {}
    if (failure := clean_up.get("failure")) is not None and clean_up.get("failing_since_ms") is not None:
        yield HealthReasonAnswer(
            code=failure["code"],
            message=f"old checkpoints are not deleted: {failure['message']}",
            since_ms=clean_up["failing_since_ms"],
            advice=failure["advice"],
            severity=20,
        )


def _repeated_failures(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    times_ms = (facts.report.get("failures") or {}).get("times_ms") or ()
    recent = [at_ms for at_ms in times_ms if facts.at_ms - at_ms < FAILURES_SPAN_MS]
    if len(recent) >= FAILURES_MIN:
        last = facts.report.get("last_failure") or {}
        which = f"; the last failure was {last['code']}" if last else ""
        yield HealthReasonAnswer(
            code="FAILS_REPEATEDLY",
            message=f"the job has failed {len(recent)} times within {FAILURES_SPAN_MS // 60_000} minutes{which}",
            advice="Read the newest exception of the job (`./keyscale jobs show JOB`), and correct its cause: each"
            " restart runs the failed batch again.",
            severity=60,
            since_ms=recent[0],
        )


def _slow_checkpoint(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    took_ms, timeout_ms = facts.checkpoint_ms, facts.checkpoint_timeout_ms
    if facts.is_current and took_ms and timeout_ms and took_ms >= CHECKPOINT_SHARE_MAX * timeout_ms:
        yield HealthReasonAnswer(
            code="CHECKPOINT_NEAR_TIMEOUT",
            message=f"the latest checkpoint took {took_ms / 1000:.1f} s of the {timeout_ms / 1000:.0f} s allowed",
            advice="Raise checkpoints.timeout_ms, or make batches shorter: a checkpoint waits for the running batch.",
            severity=30,
        )


def _restorable_soon_over(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    retention_ms, complete_at_ms = facts.source_retention_ms, facts.complete_at_ms
    if retention_ms is None or complete_at_ms is None:
        return
    age_ms = facts.at_ms - complete_at_ms
    if age_ms >= RETENTION_SHARE_MAX * retention_ms:
        kept = f"the newest snapshot is {duration_text(age_ms)} old, and the sources keep records for"
        yield HealthReasonAnswer(
            code="RESTORABLE_SOON_OVER",
            message=f"{kept} {duration_text(retention_ms)}: later, a start from it would miss records",
            advice="Let the job take a checkpoint (`./keyscale checkpoints trigger JOB`), or have the sources keep"
            " records for longer.",
            severity=70,
            since_ms=complete_at_ms + int(RETENTION_SHARE_MAX * retention_ms),
        )
