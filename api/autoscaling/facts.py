"""The facts from which the autoscaler decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.state.doors.values import KeyGroupRanges
    from keyscale.vocabulary import ScalingOutcome, ScalingVerdict


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The records and the times of a batch with input.

    Attributes:
        records: The records read.
        spark_ms: Spark's own time, with the reading of sources and the shuffle.
        log_ms: Planning and commit in the object store.
        work_ms: Functions and state, until the slowest subtask was ready.
        store_ms: Time in which tasks waited for the object store.
        sink_ms: Sinks and publication.
    """

    records: int
    spark_ms: float = 0.0
    log_ms: float = 0.0
    work_ms: float = 0.0
    store_ms: float = 0.0
    sink_ms: float = 0.0

    @property
    def duration_ms(self) -> float:
        """The time of the batch, without the wait for input."""
        return self.spark_ms + self.log_ms + self.work_ms + self.store_ms + self.sink_ms


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """How an operator's work in the last batch was spread.

    Attributes:
        uid: Its uid.
        work_ms: The time of all its subtasks.
        subtask_records: The records of each subtask.
        key_groups: The records of the largest key groups, by number.
    """

    uid: str
    work_ms: float
    subtask_records: tuple[int, ...]
    key_groups: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a parallelism means for a job.

    Attributes:
        capacity: Records that the job can process per second.
        utilization: The share of the capacity that its input and backlog take.
        work_ms: The time of functions and state for a thousand records, in the slowest subtask.
    """

    capacity: float
    utilization: float
    work_ms: float


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """A move of the autoscaler in the past.

    Attributes:
        ended_at_ms: When its rescale ended.
        before: The parallelism before.
        after: The parallelism after.
        outcome: What has become of it.
        work_ms_before: The time of a thousand records' work before.
        work_ms_expected: The time that the move promised.
    """

    ended_at_ms: int
    before: int
    after: int
    outcome: ScalingOutcome
    work_ms_before: float = 0.0
    work_ms_expected: float = 0.0

    @property
    def is_up(self) -> bool:
        return self.after > self.before


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something that hides how fast the job is.

    Attributes:
        verdict: Its verdict.
        message: What is wrong, as a clause.
    """

    verdict: ScalingVerdict
    message: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job's settings and its surroundings allow.

    Attributes:
        parallelism_min: The smallest parallelism.
        parallelism_max: The largest parallelism.
        is_excluded: Whether the present time is in an excluded hour.
        affordable: The largest parallelism that the day's budget has left; None: no budget.
    """

    parallelism_min: int
    parallelism_max: int
    is_excluded: bool = False
    affordable: int | None = None


@dataclass(frozen=True, slots=True)
class DivisionFacts:
    """How a job divides its key groups by size.

    Attributes:
        ranges: The ranges of its subtasks.
        weights: The weight of every key group in the newest checkpoint.
    """

    ranges: KeyGroupRanges
    weights: Sequence[int]


@dataclass(frozen=True, slots=True)
class SleepFacts:
    """Whether an idle job can sleep.

    Attributes:
        after_ms: The time without input after which the job sleeps.
        idle_ms: The time without input so far.
        unwatched: Kinds of sources that a sleeping driver cannot watch; None: the driver cannot sleep.
        timer_in_ms: The time until the next processing-time timer; None: there is none.
    """

    after_ms: int
    idle_ms: int
    unwatched: Sequence[str] | None = ()
    timer_in_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """All that the autoscaler knows about a job at one moment.

    Attributes:
        at_ms: The moment.
        parallelism: The job's parallelism.
        key_groups: The number of key groups.
        limits: What is allowed.
        batches: The batches of the present attempt, the oldest first, without its first and disturbed batches.
        operators: How the work of the last batch was spread.
        rate: Records that arrive per second, over the last minute; None: not known yet.
        rate_peak: The highest such rate of the last minutes.
        observed_ms: The time of which `rate_peak` is known.
        backlog: Records that wait in the sources; None: the sources cannot count.
        catch_up_ms: The time in which the job shall process its backlog.
        splits: The splits of the source with most splits; None: unknown.
        processor_wait: The share of their time for which tasks wait for a processor.
        batch_interval_ms: The minimum time between two batches.
        division: How key groups are divided by size; None: by count.
        batch_limit: The records that the sources give a batch at most, as an earlier decision has seen; None: unknown.
        disturbance: What hides how fast the job is, if anything.
        sleep: Whether the job can sleep; None: it has input, or shall not sleep.
        moves: The autoscaler's moves of the last hour and its last move, the newest first.
    """

    at_ms: int
    parallelism: int
    key_groups: int
    limits: Limits
    batches: Sequence[BatchFacts] = ()
    operators: Sequence[OperatorFacts] = ()
    rate: float | None = None
    rate_peak: float = 0.0
    observed_ms: int = 0
    backlog: int | None = None
    catch_up_ms: int = 600_000
    splits: int | None = None
    processor_wait: float = 0.0
    batch_interval_ms: int = 0
    division: DivisionFacts | None = None
    batch_limit: int | None = None
    disturbance: Disturbance | None = None
    sleep: SleepFacts | None = None
    moves: Sequence[MoveFacts] = ()
