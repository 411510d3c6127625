"""The time of a job's batches, and its capacity, at any parallelism.

A batch of n records at parallelism P takes

    overhead + n * (input + sink + store) + work(n) * share(P) / share(the present parallelism)

where `share` is the share of the records that the slowest subtask has, from the records of key groups and the ranges of
key groups that the job would have. Only the work of subtasks becomes shorter with more subtasks. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from keyscale.state.doors.planning import ranges_by_size
from keyscale.state.doors.values import KeyGroupRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .facts import BatchFacts, OperatorFacts, ScalingFacts

BATCH_MS = 2000.0
"""The time of a batch for which a job has room: longer batches delay the output."""
OVERHEAD_BATCHES = 3
"""A batch may take three times its overhead: longer batches hardly raise the capacity."""
SPREAD_MIN = 2.0
"""Only batches of different sizes tell the overhead from the cost per record."""
RECORDS_MIN = 100
"""Of fewer records in a batch, the spread over subtasks is chance."""
OPERATORS_MAX = 8
"""The spreads of the operators with most work count: each spread takes time to compute."""
LIMITED_BATCHES = 3
"""A job takes batches of limited size that leaves as many batches waiting, and whose batches are alike."""
ALIKE = 1.1


class Line(NamedTuple):
    """A part of a batch's time that grows with its records."""

    fixed_ms: float
    record_ms: float

    def at(self, records: float) -> float:
        return self.fixed_ms + records * self.record_ms


class Terms(NamedTuple):
    """The parts of a batch's time at one parallelism, in ms."""

    overhead: float
    input: float
    work: float
    store: float
    sink: float

    @property
    def batch_ms(self) -> float:
        return sum(self)


@dataclass(frozen=True, slots=True)
class HotKeyGroup:
    """The key group with the largest share of an operator's records."""

    operator: str
    key_group: int
    share: float


class _Spread:
    """The spread of an operator's records over key groups.

    The records of key groups that are not known evenly share what their subtask has read beside the known key groups.
    """

    def __init__(self, operator: OperatorFacts, ranges_at: Callable[[int], KeyGroupRanges]) -> None:
        self._ranges_at = ranges_at
        ranges, known = ranges_at(len(operator.subtask_records)), operator.key_groups
        records = [0.0] * ranges.max_parallelism
        for index, read in enumerate(operator.subtask_records):
            groups = ranges.range_of(index)
            rest = max(0.0, read - sum(known.get(group, 0) for group in groups))
            unknown = sum(group not in known for group in groups)
            for group in groups:
                records[group] = known[group] if group in known else rest / max(1, unknown)
        self._until = [0.0, *accumulate(records)]
        self._shares: dict[int, float] = {}

    def share(self, parallelism: int) -> float:
        """Returns the share of the subtask with most records."""
        if parallelism not in self._shares:
            ranges = self._ranges_at(parallelism)
            largest = max(self._until[each.end + 1] - self._until[each.start] for each in ranges)
            self._shares[parallelism] = largest / self._until[-1]
        return self._shares[parallelism]


class CostModel:
    """A job's cost per batch and per record, fitted to its batches.

    Args:
        facts: The facts; at least one batch.

    Attributes:
        batch_ms: The time of a batch for which the job has room.
        limit: The records that the sources give a batch at most; None: unknown.
        hot_key_group: The key group with the largest share of an operator's records, if known.
    """

    def __init__(self, facts: ScalingFacts) -> None:
        batches = facts.batches
        self._parallelism = facts.parallelism
        self._spark = _fitted(batches, [each.spark_ms + each.log_ms for each in batches], is_fixed=True)
        self._work = _fitted(batches, [each.work_ms for each in batches])
        self._work_ms = 1000 * sum(each.work_ms for each in batches) / sum(each.records for each in batches)
        self._store = _fitted(batches, [each.store_ms for each in batches])
        self._sink = _fitted(batches, [each.sink_ms for each in batches])
        ranges_at = _ranges_of(facts)
        self._spreads = [
            (each.work_ms, _Spread(each, ranges_at))
            for each in sorted(facts.operators, key=lambda operator: -operator.work_ms)[:OPERATORS_MAX]
            if each.work_ms and sum(each.subtask_records) >= RECORDS_MIN
        ]
        self.limit = _limit_of(facts)
        self.batch_ms = max(
            BATCH_MS, facts.batch_interval_ms, OVERHEAD_BATCHES * self.terms(0, facts.parallelism).batch_ms
        )
        self.hot_key_group = _hottest(facts.operators)

    def terms(self, records: float, parallelism: int) -> Terms:
        """Returns the parts of a batch's time at a parallelism."""
        relief = self._relief(parallelism)
        fixed = self._spark.fixed_ms + self._work.fixed_ms + self._store.fixed_ms + self._sink.fixed_ms
        return Terms(
            overhead=fixed,
            input=records * self._spark.record_ms,
            work=records * self._work.record_ms * relief,
            store=records * self._store.record_ms,
            sink=records * self._sink.record_ms,
        )

    def records(self, parallelism: int) -> float:
        """Returns how many records fit into a batch at a parallelism."""
        one = self.terms(1, parallelism)
        record_ms = one.batch_ms - one.overhead
        fit = (self.batch_ms - one.overhead) / max(record_ms, 1e-9)
        return fit if self.limit is None else min(fit, self.limit)

    def capacity(self, parallelism: int) -> float:
        """Returns how many records per second the job can process."""
        records = self.records(parallelism)
        return 1000 * records / max(self.terms(records, parallelism).batch_ms, 1.0)

    def work_ms(self, parallelism: int) -> float:
        """Returns the time of a thousand records' functions and state."""
        return self._work_ms * self._relief(parallelism)

    def share(self, parallelism: int) -> float:
        """Returns the share of the records that the slowest subtask has."""
        return max((spread.share(parallelism) for _, spread in self._spreads), default=1 / parallelism)

    def _relief(self, parallelism: int) -> float:
        """Returns the time of the work relative to the present parallelism."""
        if not self._spreads:
            return self._parallelism / parallelism
        present = sum(work_ms * spread.share(self._parallelism) for work_ms, spread in self._spreads)
        return sum(work_ms * spread.share(parallelism) for work_ms, spread in self._spreads) / present


def _ranges_of(facts: ScalingFacts) -> Callable[[int], KeyGroupRanges]:
    """Returns the ranges of key groups at any parallelism."""
    division = facts.division

    @cache
    def ranges_at(parallelism: int) -> KeyGroupRanges:
        if division is None:
            return KeyGroupRanges.of_count(facts.key_groups, parallelism)
        is_present = parallelism == len(division.ranges)
        return division.ranges if is_present else ranges_by_size(division.weights, parallelism)

    return ranges_at


def _fitted(batches: Sequence[BatchFacts], parts_ms: Sequence[float], *, is_fixed: bool = False) -> Line:
    """Fits a line to a part of the batches' time.

    Of batches that are alike, the part is a cost per record, or with `is_fixed` a cost per batch up to `BATCH_MS`.
    """
    sizes = [each.records for each in batches]
    size, part_ms = sum(sizes) / len(sizes), sum(parts_ms) / len(sizes)
    slope = max(0.0, part_ms - BATCH_MS) / size if is_fixed else part_ms / size
    if max(sizes) >= SPREAD_MIN * min(sizes):
        deviations = [each - size for each in sizes]
        slope = sum(map(float.__mul__, deviations, parts_ms)) / sum(each * each for each in deviations)
        slope = min(max(0.0, slope), part_ms / size)
    return Line(part_ms - slope * size, slope)


def _limit_of(facts: ScalingFacts) -> int | None:
    """Returns the records that the sources give a batch at most.

    Only a backlog shows the limit. It is known until a batch has more records.
    """
    sizes = [each.records for each in facts.batches]
    if (facts.backlog or 0) >= LIMITED_BATCHES * max(sizes) and max(sizes) <= ALIKE * min(sizes):
        return max(sizes)
    known = facts.batch_limit
    return known if known is not None and max(sizes) <= ALIKE * known else None


def _hottest(operators: Sequence[OperatorFacts]) -> HotKeyGroup | None:
    found = [
        HotKeyGroup(each.uid, group, records / sum(each.subtask_records))
        for each in operators
        if sum(each.subtask_records) >= RECORDS_MIN
        for group, records in each.key_groups.items()
    ]
    return max(found, key=lambda hot: hot.share, default=None)
