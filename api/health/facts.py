"""The facts that decide a job's health, from its driver's last report.

Reports are read as they are stored: turning each into a message would take longer than a whole scrape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from keyscale.metrics import BATCH_PARTS
from keyscale.vocabulary import DriverState

from ..lifecycle.steps import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCHES_MAX = 6
"""The number of batches that a job's health depends on."""
FIXED_PARTS = ("plan_ms", "spark_ms", "append_ms", "publish_ms")
"""The parts of a batch that hardly depend on the number of its records."""


@dataclass(frozen=True)
class StartWait:
    """A start that waits for its turn.

    Attributes:
        place: Its place in the line, from 1.
        count: How many starts wait.
        since_ms: Since when it waits.
    """

    place: int
    count: int
    since_ms: int


def idle_at_ms(attempt: Mapping[str, Any], report: Mapping[str, Any]) -> int | None:
    """Returns when the sources last had no record after the snapshot.

    A sleeping driver asks the sources. Before the attempt that follows a sleep, the sources had no such record.

    Args:
        attempt: The columns of the attempt.
        report: The last report of its driver.
    """
    heard_at_ms, age_ms = attempt.get("heartbeat_at_ms"), report.get("lag_age_ms") or 0
    if attempt.get("driver_state") == DriverState.SLEEPING and heard_at_ms is not None:
        return int(heard_at_ms - age_ms)
    created_at_ms: int | None = attempt.get("created_at_ms")
    return created_at_ms if attempt.get("cause") == Cause.WAKE else None


@dataclass(frozen=True)
class HealthFacts:
    """The facts that decide a job's health.

    Attributes:
        report: The last report of the driver of the job's present or last attempt; empty before the first report.
        is_active: Whether the attempt may run the job.
        is_current: Whether the driver runs the job and the report is not outdated.
        is_settled: Whether the job has ended, so that the platform does not try to run it.
        failure: The failure that the job has not recovered from, with code, message and advice.
        ended_at_ms: When the job last ended.
        start_wait: The start that waits for its turn, if any.
        checkpoint_ms: Duration of the latest completed checkpoint.
        checkpoint_timeout_ms: The longest that a checkpoint may take.
        snapshot_at_ms: When the newest checkpoint or savepoint was completed.
        idle_at_ms: When the sources of a job that sleeps, or has slept, last had no record after that snapshot.
        at_ms: The present time.
    """

    report: Mapping[str, Any] = field(default_factory=dict)
    is_active: bool = False
    is_current: bool = False
    is_settled: bool = False
    failure: Mapping[str, Any] | None = None
    ended_at_ms: int | None = None
    start_wait: StartWait | None = None
    checkpoint_ms: int | None = None
    checkpoint_timeout_ms: int | None = None
    snapshot_at_ms: int | None = None
    idle_at_ms: int | None = None
    at_ms: int = 0

    @property
    def source_retention_ms(self) -> int | None:
        """How long the sources keep records, if they tell."""
        retention_ms: int | None = self.report.get("source_retention_ms")
        return retention_ms

    @property
    def complete_at_ms(self) -> int | None:
        """When the newest snapshot last had all records of the sources."""
        return None if self.snapshot_at_ms is None else max(self.snapshot_at_ms, self.idle_at_ms or 0)

    @property
    def restorable_until_at_ms(self) -> int | None:
        """Until when the sources keep all records after the newest snapshot."""
        if self.complete_at_ms is None or self.source_retention_ms is None:
            return None
        return self.complete_at_ms + self.source_retention_ms

    @cached_property
    def batches(self) -> Sequence[Mapping[str, Any]]:
        """The last batches, without the first batch of the driver.

        The first batch starts Spark and Python, which says nothing about later batches.
        """
        recent: Sequence[Mapping[str, Any]] = self.report.get("recent_batches") or ()
        return recent[1:][-BATCHES_MAX:]

    @cached_property
    def parts_ms(self) -> Mapping[str, float]:
        """The parts of a batch, on average over the last batches."""
        count = max(1, len(self.batches))
        return {part.name: sum(batch.get(part.name, 0) for batch in self.batches) / count for part in BATCH_PARTS}

    @cached_property
    def busy_ms(self) -> float:
        """The time of a batch without the wait for input."""
        return sum(self.parts_ms.values()) - self.parts_ms["wait_ms"]

    def share(self, *parts: str) -> float:
        """Returns the share of parts in the busy time of a batch."""
        return sum(self.parts_ms[part] for part in parts) / self.busy_ms if self.busy_ms else 0.0

    @property
    def busy_ratio(self) -> float:
        """The share of the time without waits for input."""
        return self.busy_ms / max(1.0, self.busy_ms + self.parts_ms["wait_ms"])

    @property
    def lag_records(self) -> int | None:
        """The records that wait; None if the sources cannot count."""
        records: int | None = self.report.get("pending_records")
        return records

    @property
    def lag_growth(self) -> float | None:
        """The growth of the waiting records per second, if known."""
        growth: float | None = self.report.get("lag_growth")
        return growth

    @property
    def behind_s(self) -> float | None:
        """The time in which as many records arrive as wait."""
        if self.lag_records is None:
            return None
        arriving = self._number("input_records_per_second") + (self.lag_growth or 0.0)
        return self.lag_records / max(1.0, arriving)

    @property
    def operators(self) -> Sequence[Mapping[str, Any]]:
        """The metrics of the operators."""
        found: Sequence[Mapping[str, Any]] = self.report.get("operators") or ()
        return found

    @property
    def records_of_batch(self) -> float:
        """The average records of the last batches with input."""
        counts = [batch["input_records"] for batch in self.batches if batch["input_records"]]
        return sum(counts) / len(counts) if counts else 0.0

    def _number(self, name: str) -> float:
        return float(self.report.get(name) or 0.0)
