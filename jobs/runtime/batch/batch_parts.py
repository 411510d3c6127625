"""The parts of a batch's time, which add up to the whole.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keyscale.identifiers import OperatorUid

    from ..executor.task_reports import TaskReport


@dataclass(frozen=True, slots=True)
class BatchStart:
    """The moments until a batch runs, in ms of one clock.

    Attributes:
        began_ms: The end of the previous batch, or the start of the query.
        found_ms: When Spark found the batch's input.
        received_ms: When Spark handed the batch over.
        planned_ms: When the batch's plan was in the log.
    """

    began_ms: float
    found_ms: float
    received_ms: float
    planned_ms: float


class Staging(NamedTuple):
    """A sink's work on a batch, by the driver's clock."""

    uid: OperatorUid
    began_at_ms: float
    ended_at_ms: float


def sink_times_ms(stagings: Iterable[Staging], reports: Iterable[TaskReport]) -> dict[OperatorUid, float]:
    """Returns how long each sink staged rows, beside the tasks.

    A sink runs the tasks itself when it reads its rows, so only the time after the last of them is its own.
    """
    ends_ms = [report.began_at_ms + report.duration_ms for report in reports if report.busy_ms]
    times: dict[OperatorUid, float] = defaultdict(float)
    for uid, began_ms, ended_ms in stagings:
        own_ms = max((end for end in ends_ms if began_ms < end <= ended_ms), default=began_ms)
        times[uid] += max(0.0, ended_ms - own_ms)
    return dict(times)


def parts_of_batch(
    start: BatchStart,
    *,
    ran_ms: float,
    committed_ms: float,
    published_ms: float,
    sinks_ms: float,
    reports: Sequence[TaskReport],
) -> dict[str, int]:
    """Returns the parts of a batch's time in whole ms.

    The names are the names in `keyscale.metrics`. The time in which tasks ran is divided among their activities; the
    rest of the batch is Spark's.

    Args:
        start: The moments until the batch ran.
        ran_ms: When its output was staged.
        committed_ms: When its commit was in the log.
        published_ms: When its output was visible, which is its end.
        sinks_ms: The time that sinks took beside the tasks.
        reports: The reports of its tasks.
    """
    run_ms = ran_ms - start.planned_ms
    sinks_ms = min(sinks_ms, run_ms)
    tasks_ms = min(running_ms(reports), run_ms - sinks_ms)
    all_ms = sum(report.duration_ms for report in reports)
    scale = tasks_ms / all_ms if all_ms else 0.0
    found_ms = min(max(start.found_ms, start.began_ms), start.received_ms)
    parts = {
        "wait_ms": found_ms - start.began_ms,
        "plan_ms": start.planned_ms - start.received_ms,
        "function_ms": scale * sum(report.process_ms for report in reports),
        "state_ms": scale * sum(report.open_ms + report.finish_ms for report in reports),
        "store_ms": scale * sum(report.store_ms for report in reports),
        "sink_ms": sinks_ms + scale * sum(report.output_ms for report in reports),
        "append_ms": committed_ms - ran_ms,
        "publish_ms": published_ms - committed_ms,
    }
    whole = {name: int(part_ms) for name, part_ms in parts.items()}
    return {**whole, "spark_ms": max(0, int(published_ms - start.began_ms) - sum(whole.values()))}


def running_ms(reports: Iterable[TaskReport]) -> float:
    """Returns for how long tasks ran.

    The executor with the longest time counts, as clocks of different hosts are not compared. Tasks that run at the same
    time count once.
    """
    spans: Mapping[str, list[tuple[float, float]]] = defaultdict(list)
    for report in reports:
        spans[report.executor].append((report.began_at_ms, report.began_at_ms + report.duration_ms))
    return max((_covered_ms(of_executor) for of_executor in spans.values()), default=0.0)


def _covered_ms(spans: list[tuple[float, float]]) -> float:
    covered_ms, reached_ms = 0.0, float("-inf")
    for began_ms, ended_ms in sorted(spans):
        covered_ms += max(0.0, ended_ms - max(began_ms, reached_ms))
        reached_ms = max(reached_ms, ended_ms)
    return covered_ms
