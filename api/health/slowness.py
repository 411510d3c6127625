"""Why a job does not keep up with its input.

Only a job that is behind, and not catching up, is slow: a share of a batch's time is no fault by itself. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from .facts import FIXED_PARTS
from .schemas import HealthReasonAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .facts import HealthFacts

BUSY_MIN = 0.8
"""A job that waits for input more often keeps up."""
BEHIND_MIN_S, BEHIND_MAX_S = 10.0, 60.0
BEHIND_BATCHES = 3
"""A job is behind by the input of three batches, within these bounds."""
CATCH_UP_MAX_S = 600.0
"""A job that catches up within this time is not slow."""
UNCOUNTED_BATCH_MIN_MS = 5000.0
"""Without a count of waiting records, a job is slow whose batches take longer, without a pause."""
DOMINANT = 0.5
"""The share of a batch from which a part is the cause of slowness."""
NOTABLE_MS = 500.0
"""A part that takes less time in a batch is a fixed cost of small batches."""
FIXED_DOMINANT = 0.7
SLOWEST_TO_OTHERS = 3.0
"""How much longer than the average other subtask a subtask works that the other subtasks wait for."""
SLOWEST_SHARE = 0.4
"""The share of a batch from which the slowest subtask decides how long the batch takes."""
HOT_SUBTASKS = 1.5
"""A key group with the records of as many average subtasks is hot."""
RECORDS_MIN = 100
"""Of fewer records in a batch, the spread over subtasks is chance."""
COLLECTING = 0.2
"""The share of the tasks' time from which garbage collection is a cause of slowness."""
OVERLOADED = 0.3
"""The share of its time for which a task on an overloaded host waits for a processor."""
OVERLOADED_MIN_MS = 200.0


def slowness_of(facts: HealthFacts) -> list[HealthReasonAnswer]:
    """Returns why a job does not keep up, if it does not."""
    if not facts.is_current or not _is_slow(facts):
        return []
    uneven = [reason for operator in facts.operators for reason in _uneven(operator, facts.busy_ms)]
    dominant = [*(uneven or _slow_function(facts)), *_slow_sink(facts), *_slow_store(facts)]
    causes = [*(dominant or _small_batches(facts)), *_garbage_collection(facts), *_overloaded_host(facts)]
    helps = bool(causes) and max(causes, key=lambda cause: cause.severity).more_subtasks_help
    return [*causes, _behind(facts, more_subtasks_help=helps)]


def _is_slow(facts: HealthFacts) -> bool:
    if facts.busy_ratio < BUSY_MIN:
        return False
    if facts.behind_s is None:
        return facts.busy_ms >= UNCOUNTED_BATCH_MIN_MS
    behind_min_s = min(BEHIND_MAX_S, max(BEHIND_MIN_S, BEHIND_BATCHES * facts.busy_ms / 1000))
    if facts.lag_growth is None or facts.behind_s < behind_min_s:
        return False
    return facts.lag_growth >= 0 or (facts.lag_records or 0) / -facts.lag_growth > CATCH_UP_MAX_S


def _behind(facts: HealthFacts, *, more_subtasks_help: bool) -> HealthReasonAnswer:
    advice = (
        "Look at the parts of the recent batches (`./keyscale jobs batches JOB`): change what takes most of the time."
    )
    if facts.lag_records is None or facts.behind_s is None:
        return HealthReasonAnswer(
            code="BATCHES_WITHOUT_PAUSE",
            message=f"batches of {facts.busy_ms / 1000:.1f} s follow each other without a pause, and the sources do not"
            " count the records that wait",
            advice=advice,
            severity=10,
            more_subtasks_help=more_subtasks_help,
        )
    behind, growth = f"{facts.lag_records:,} records wait, the input of {facts.behind_s:,.0f} s", facts.lag_growth or 0
    if growth > 0:
        return HealthReasonAnswer(
            code="FALLING_BEHIND",
            message=f"{behind}, and {growth:,.0f} more with each second",
            advice=advice,
            severity=30,
            more_subtasks_help=more_subtasks_help,
        )
    return HealthReasonAnswer(
        code="BEHIND",
        message=f"{behind}, and the job hardly catches up",
        advice=advice,
        severity=15,
        more_subtasks_help=more_subtasks_help,
    )


@dataclass(frozen=True, slots=True)
class _Load:
    """How the work of a batch is spread over an operator's subtasks."""

    slowest: Mapping[str, Any]
    slowest_ms: float
    others_ms: float

    @classmethod
    def of(cls, subtasks: Sequence[Mapping[str, Any]]) -> _Load:
        times = [_busy_ms(each) for each in subtasks]
        slowest_ms = max(times)
        slowest = subtasks[times.index(slowest_ms)]
        return cls(slowest, slowest_ms, (sum(times) - slowest_ms) / max(1, len(times) - 1))


def _uneven(operator: Mapping[str, Any], batch_ms: float) -> Iterator[HealthReasonAnswer]:
    """Yields why one subtask of an operator has most of the work."""
    subtasks, records = operator.get("subtasks") or (), operator.get("batch_records") or 0
    if not subtasks or records < RECORDS_MIN:
        return
    uid, load = operator["uid"], _Load.of(subtasks)
    if load.slowest_ms < max(NOTABLE_MS, SLOWEST_SHARE * batch_ms):
        return
    largest = next(iter(operator.get("key_groups") or ()), None)
    share = 0.0 if largest is None else largest["records"] / records
    if largest is not None and share * max(2, len(subtasks)) >= HOT_SUBTASKS:
        yield HealthReasonAnswer(
            code="HOT_KEY_GROUP",
            message=f"key group {largest['key_group']} of operator {uid} has {share:.0%} of the records, which one"
            " subtask must process",
            advice="Add a part to the key that spreads its records, such as a number from 0 to 15, and combine the"
            " results in a second operator; or drop the records of the key before the operator.",
            severity=35 + round(25 * share),
        )
    elif len(subtasks) > 1 and load.slowest_ms >= SLOWEST_TO_OTHERS * load.others_ms:
        yield HealthReasonAnswer(
            code="SUBTASK_SKEW",
            message=f"subtask {load.slowest['index']} of operator {uid} works {load.slowest_ms / 1000:.1f} s in a"
            f" batch, the other subtasks {load.others_ms / 1000:.1f} s on average, and then wait",
            advice="Choose a key with more values, or with values of similar frequency. If several large key groups are"
            " in the subtask, a higher parallelism spreads them.",
            severity=45,
            more_subtasks_help=True,
        )


def _slow_function(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    share = facts.share("function_ms", "state_ms")
    if share < DOMINANT or facts.parts_ms["function_ms"] < NOTABLE_MS:
        return
    operator = max(facts.operators, key=_work_ms, default=None)
    of_operator = "" if operator is None else f" of operator {operator['uid']}"
    yield HealthReasonAnswer(
        code="FUNCTION_SLOW",
        message=f"functions and their state take {share:.0%} of a batch, most of it the function{of_operator}",
        advice="Raise the parallelism, if the hosts have processors left. Make the function faster: `./keyscale jobs"
        " profile JOB` shows where its time goes, and processor_ms of its subtasks whether it computes or waits.",
        severity=30 + round(25 * share),
        more_subtasks_help=True,
    )


def _slow_sink(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    share, spent_ms = facts.share("sink_ms", "publish_ms"), facts.parts_ms["sink_ms"] + facts.parts_ms["publish_ms"]
    if share < DOMINANT or spent_ms < NOTABLE_MS:
        return
    sinks: Sequence[Mapping[str, Any]] = facts.report.get("sinks") or ()
    slowest = max(sinks, key=lambda sink: float(sink.get("write_ms") or 0), default=None)
    which = "the sinks take" if slowest is None else f"sink {slowest['uid']} takes most of"
    yield HealthReasonAnswer(
        code="SINK_SLOW",
        message=f"{which} the {spent_ms / 1000:.1f} s in which a batch is written, {share:.0%} of its time",
        advice="Give the sink's system more room: indexes, partitions, connections, network. Larger batches help if the"
        " time hardly depends on the number of rows.",
        severity=30 + round(25 * share),
    )


def _slow_store(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    parts = ("plan_ms", "store_ms", "append_ms")
    share, spent_ms = facts.share(*parts), sum(facts.parts_ms[part] for part in parts)
    if share < DOMINANT or spent_ms < NOTABLE_MS:
        return
    yield HealthReasonAnswer(
        code="STORE_SLOW",
        message=f"a batch waits {spent_ms / 1000:.1f} s for the object store, {share:.0%} of its time",
        advice="Use an object store near the job, or larger batches, which write the same number of objects.",
        severity=30 + round(25 * share),
    )


def _small_batches(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    share, records = facts.share(*FIXED_PARTS), facts.records_of_batch
    has_more = facts.lag_records is not None and facts.lag_records >= BEHIND_BATCHES * records
    if share < FIXED_DOMINANT or not has_more or not records:
        return
    yield HealthReasonAnswer(
        code="BATCHES_TOO_SMALL",
        message=f"a batch takes {records:,.0f} records, and {share:.0%} of its {facts.busy_ms:,.0f} ms is a fixed cost",
        advice="Let a batch take more records: raise max_records_per_batch of env.read, or the limit of Spark's source"
        " (maxFilesPerTrigger, maxOffsetsPerTrigger).",
        severity=30 + round(25 * share),
    )


def _garbage_collection(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    share = float(facts.report.get("garbage_collection_ratio") or 0)
    if share < COLLECTING:
        return
    yield HealthReasonAnswer(
        code="GARBAGE_COLLECTION",
        message=f"the JVMs collect garbage for {share:.0%} of the tasks' time",
        advice="Give the JVMs more memory: spark.driver.memory, or spark.executor.memory on a cluster.",
        severity=20 + round(40 * share),
    )


def _overloaded_host(facts: HealthFacts) -> Iterator[HealthReasonAnswer]:
    share = processor_wait(facts.operators)
    if share < OVERLOADED:
        return
    yield HealthReasonAnswer(
        code="HOST_OVERLOADED",
        message=f"tasks wait for a processor of their host for {share:.0%} of their time",
        advice="Give the job hosts with more processors, or run fewer jobs on its hosts.",
        severity=15 + round(15 * share),
    )


def processor_wait(operators: Sequence[Mapping[str, Any]]) -> float:
    """Returns the share of the tasks' time spent waiting for a processor.

    It is 0 if the tasks have hardly worked.
    """
    subtasks = list(chain.from_iterable(operator.get("subtasks") or () for operator in operators))
    worked_ms = sum(map(_busy_ms, subtasks))
    waited_ms = sum(float(each.get("processor_wait_ms") or 0) for each in subtasks)
    return min(1.0, waited_ms / worked_ms) if worked_ms >= OVERLOADED_MIN_MS else 0.0


def _work_ms(operator: Mapping[str, Any]) -> float:
    return sum(map(_busy_ms, operator.get("subtasks") or ()))


def _busy_ms(subtask: Mapping[str, Any]) -> float:
    return sum(float(subtask.get(name) or 0) for name in ("open_ms", "process_ms", "store_ms", "finish_ms"))
