"""Replays a job's past input at another parallelism.

The records that arrived are known from the series of metrics, and what a parallelism can process from the model of the
job's batches. A replay at the parallelism that the job really had shows how far the model is to be trusted. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.db.repositories.scaling import Load, Run


class Arrival(NamedTuple):
    """The input of a step.

    Attributes:
        at_ms: The end of the step.
        seconds: Its length.
        records: The records that arrived.
        waiting: The records that waited at its end.
    """

    at_ms: int
    seconds: float
    records: float
    waiting: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What has waited, and what would have waited.

    Attributes:
        capacity: Records that the job can process per second at the parallelism.
        at_ms: The time of each point.
        measured: The records that waited.
        as_run: By the model, at the parallelism that the job had.
        replayed: By the model, at the parallelism that was asked for.
        rate: Records that arrived per second, on average.
    """

    capacity: float
    at_ms: Sequence[int]
    measured: Sequence[float]
    as_run: Sequence[float]
    replayed: Sequence[float]
    rate: float

    def peak_ms(self, waiting: Sequence[float]) -> float | None:
        """Returns the largest lag as a time; None without input.

        In this time as many records arrive on average as have waited at most.
        """
        return 1000 * max(waiting, default=0.0) / self.rate if self.rate else None

    @property
    def error(self) -> float | None:
        """The share by which the model misses the measured peak.

        None if nothing has waited.
        """
        peak = max(self.measured, default=0.0)
        return abs(max(self.as_run) - peak) / peak if peak else None


def replay(
    loads: Sequence[Load], runs: Sequence[Run], capacity: Callable[[int], float], parallelism: int
) -> Replay | None:
    """Replays loads at a parallelism.

    While no driver ran the job, nothing is processed at any parallelism.

    Args:
        loads: What the job has read, and what waited, in the order of time.
        runs: When drivers ran the job, and at which parallelism, in the order of time.
        capacity: Records per second that a parallelism can process.
        parallelism: The parallelism.

    Returns:
        None if the sources have not said what waited.
    """
    arrivals = arrivals_of(loads)
    if not arrivals:
        return None
    begins = [run.begin_ms for run in runs]
    known: dict[int, float] = {}

    def run_at(at_ms: int) -> Run | None:
        found = runs[at - 1] if (at := bisect_right(begins, at_ms)) else None
        return found if found is not None and (found.end_ms is None or at_ms <= found.end_ms) else None

    def processes(wanted: int) -> float:
        if wanted not in known:
            known[wanted] = capacity(wanted)
        return known[wanted]

    as_run, replayed = [], []
    of_job = of_replay = max(0.0, arrivals[0].waiting - arrivals[0].records)
    for each in arrivals:
        run = run_at(each.at_ms)
        for_job, for_replay = (0.0, 0.0) if run is None else (processes(run.parallelism), processes(parallelism))
        of_job = max(0.0, of_job + each.records - each.seconds * for_job)
        of_replay = max(0.0, of_replay + each.records - each.seconds * for_replay)
        as_run.append(of_job)
        replayed.append(of_replay)
    return Replay(
        processes(parallelism),
        [each.at_ms for each in arrivals],
        [float(each.waiting) for each in arrivals],
        as_run,
        replayed,
        sum(each.records for each in arrivals) / sum(each.seconds for each in arrivals),
    )


def arrivals_of(loads: Sequence[Load]) -> list[Arrival]:
    """Returns what arrived between the moments with a known backlog."""
    known = [(each.at_ms, each.input_records, each.lag_records) for each in loads if each.lag_records is not None]
    found = []
    for (before_ms, read_before, waited), (at_ms, read, waiting) in pairwise(known):
        records = max(0.0, float(read - read_before + waiting - waited))
        found.append(Arrival(at_ms, (at_ms - before_ms) / 1000, records, waiting))
    return found
