"""The autoscaler's decision about a job: facts in, decision out.

A job moves up when its input takes more than `UTILIZATION_MAX` of its capacity, to the smallest parallelism at which
the input takes at most `UTILIZATION_AIM`. The job moves down when the highest input of the last minutes would take at
most `UTILIZATION_DOWN` of a smaller capacity. The distances between the three are wider than a noise of 15 %, so a job
that has moved rests. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keyscale.units import counted, duration_text
from keyscale.vocabulary import ScalingOutcome, ScalingVerdict

from ..health.slowness import OVERLOADED
from .facts import Effect
from .model import CostModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .facts import MoveFacts, ScalingFacts, SleepFacts

UTILIZATION_MAX, UTILIZATION_AIM, UTILIZATION_DOWN = 0.9, 0.75, 0.6
SMALL_CATCH_UP_S = 120.0
"""The time in which a job shall process a small backlog."""
SMALL_BACKLOG_SHARE_MAX = UTILIZATION_AIM / UTILIZATION_DOWN - 1
"""A small backlog counts as at most this share of the rate: without the backlog, the larger cluster still fits."""
EFFICIENCY_MIN = 0.25
"""Twice as many subtasks must raise the capacity by a quarter at least, and so on."""
DOUBLING_MIN = 1.6
"""Where no parallelism suffices, each doubling must give this much."""
BATCHES_MIN, BATCHES_MIN_MS = 4, 30_000.0
"""So many batches, or batches of so long, show how fast a job is: an overloaded job has few long batches."""
UP_COOLDOWN_MS, DOWN_COOLDOWN_MS, UP_TO_DOWN_MS = 60_000, 120_000, 300_000
MEASURED_AFTER_MS = 60_000
DELIVERED_SHARE = 0.5
"""An upward move has delivered that shortens the work of a record by half of what was promised."""
REMEMBERED_MS = 3_600_000
"""For this time a move that was undone, or failed, is not repeated."""
HOT_KEY_GROUPS = 4
"""A key group is hot that has the records of as many average key groups."""

_V = ScalingVerdict


@dataclass(frozen=True, slots=True)
class Decision:
    """What the autoscaler decides about a job at one moment.

    Attributes:
        verdict: What, and why.
        parallelism: The present parallelism.
        target: The parallelism that the job shall have.
        message: The reason, as a sentence.
        advice: What a user can do, where more subtasks do not help.
        present: The present capacity, if known.
        expected: The capacity at the target, of a move.
        outcome: What has become of the last move, if this decision has measured it.
        batch_limit: The records that the sources give a batch at most, if known.
    """

    verdict: ScalingVerdict
    parallelism: int
    target: int
    message: str
    advice: str | None = None
    present: Effect | None = None
    expected: Effect | None = None
    outcome: ScalingOutcome | None = None
    batch_limit: int | None = None

    @property
    def is_move(self) -> bool:
        return self.verdict.is_move


def decide(facts: ScalingFacts) -> Decision:
    """Returns the decision that follows from the facts."""
    if facts.disturbance is not None:
        return _hold(facts, facts.disturbance.verdict, facts.disturbance.message)
    sleep = facts.sleep
    if sleep is None or sleep.idle_ms < sleep.after_ms or facts.backlog:
        return _awake(facts)
    if (why := _why_awake(sleep)) is None:
        return _hold(facts, _V.SLEEP, f"no record has arrived for {duration_text(sleep.after_ms)}")
    decision = _awake(facts)
    return replace(decision, message=f"{decision.message}; {why}")


def _awake(facts: ScalingFacts) -> Decision:
    """Returns the decision about the parallelism."""
    at, limits = facts.parallelism, facts.limits
    within = min(max(at, limits.parallelism_min), limits.parallelism_max)
    if within != at:
        reason = f"the limits are {limits.parallelism_min} to {limits.parallelism_max}"
        if (bad := _remembered(facts, within)) is not None:
            return _hold(facts, _V.NOT_DELIVERED, f"{reason}, but {_not_repeated(facts, bad)}")
        return _moved(facts, within, reason) or _hold(facts, _V.EXCLUDED_HOURS, f"{reason}; {_EXCLUDED}")
    is_measured = not facts.moves or facts.moves[0].outcome is not ScalingOutcome.PENDING
    if facts.rate_peak == 0 and not facts.backlog and facts.observed_ms >= UP_TO_DOWN_MS and is_measured:
        return _idle(facts)
    is_speed_known = len(facts.batches) >= BATCHES_MIN or _duration_ms(facts) >= BATCHES_MIN_MS
    if is_speed_known and facts.rate is not None:
        return _Judge(facts, facts.rate).decision()
    return _hold(
        facts,
        _V.WARMING_UP,
        "half a minute shows how many records arrive"
        if is_speed_known
        else f"{BATCHES_MIN} batches with input, or half a minute of them, show how fast the job is",
    )


def _duration_ms(facts: ScalingFacts) -> float:
    return sum(each.duration_ms for each in facts.batches)


_EXCLUDED = "no move takes place in excluded hours"


def _hold(facts: ScalingFacts, verdict: ScalingVerdict, message: str) -> Decision:
    return Decision(verdict, facts.parallelism, facts.parallelism, message)


def _moved(facts: ScalingFacts, target: int, reason: str) -> Decision | None:
    if facts.limits.is_excluded:
        return None
    verdict = _V.SCALE_UP if target > facts.parallelism else _V.SCALE_DOWN
    return Decision(verdict, facts.parallelism, target, f"{facts.parallelism} to {target}: {reason}")


def _idle(facts: ScalingFacts) -> Decision:
    """Returns the decision about a job without input."""
    idle, last = "no record arrives", facts.moves[0] if facts.moves else None
    if facts.parallelism == facts.limits.parallelism_min:
        return _hold(facts, _V.STEADY, idle)
    if last is not None and facts.at_ms - last.ended_at_ms < _cooldown_ms(last, is_up=False):
        return _hold(facts, _V.COOLING_DOWN, f"{idle}, and the job has just moved")
    return _moved(facts, facts.limits.parallelism_min, idle) or _hold(facts, _V.EXCLUDED_HOURS, f"{idle}; {_EXCLUDED}")


def _why_awake(sleep: SleepFacts) -> str | None:
    """Returns why an idle job does not sleep, if it does not."""
    if sleep.unwatched is None:
        return "the job does not sleep, as its driver cannot, or does not know its timers"
    if sleep.unwatched:
        kind = sleep.unwatched[0]
        source = kind if kind.startswith("a source ") else f"a source of kind {kind}"
        return f"the job does not sleep, as {source} cannot be watched"
    if sleep.timer_in_ms is not None and sleep.timer_in_ms < sleep.after_ms:
        return f"the job does not sleep, as a timer is due in {duration_text(max(0, sleep.timer_in_ms))}"
    return None


def _remembered(facts: ScalingFacts, target: int) -> MoveFacts | None:
    """Returns a recent move in the same direction that has not helped."""
    for move in facts.moves:
        is_bad = move.outcome in {ScalingOutcome.NOT_DELIVERED, ScalingOutcome.FAILED}
        reaches = target >= move.after > facts.parallelism if move.is_up else target <= move.after < facts.parallelism
        if is_bad and reaches and facts.at_ms - move.ended_at_ms < REMEMBERED_MS:
            return move
    return None


def _not_repeated(facts: ScalingFacts, bad: MoveFacts) -> str:
    until = duration_text(REMEMBERED_MS - (facts.at_ms - bad.ended_at_ms))
    how = "has failed" if bad.outcome is ScalingOutcome.FAILED else "has not helped"
    return f"{bad.before} to {bad.after} {how} and is not repeated for {until}"


class _Judge:
    """Weighs a job's facts by the model of its batches.

    The job has no disturbance, and its parallelism is within the limits.
    """

    def __init__(self, facts: ScalingFacts, rate: float) -> None:
        self._facts = facts
        self._rate = rate
        self._at = facts.parallelism
        self._model = CostModel(facts)
        self._load = rate + self._catch_up_rate()
        self._present = self._effect(self._at)
        self._outcome: ScalingOutcome | None = None

    def decision(self) -> Decision:
        last = self._facts.moves[0] if self._facts.moves else None
        is_pending = last is not None and last.outcome is ScalingOutcome.PENDING
        if last is not None and is_pending and (decided := self._measured(last)) is not None:
            return decided
        if self._present.utilization > UTILIZATION_MAX:
            return self._up(last)
        return self._down(last) or self._steady()

    def _steady(self) -> Decision:
        said = self._said()
        peak = max(self._load, self._facts.rate_peak) / max(self._present.capacity, 1e-9)
        if self._at > self._facts.limits.parallelism_min and peak > 1.1 * self._present.utilization:
            said += f", and took up to {peak:.0%} in the last ten minutes"
        return self._decision(_V.STEADY, said)

    def _said(self) -> str:
        """Returns what takes which share of the capacity."""
        what = "the input and the backlog take" if self._load > self._rate else "the input takes"
        return f"{what} {self._present.utilization:.0%} of the capacity"

    def _catch_up_rate(self) -> float:
        """Returns the rate at which the job shall process its backlog.

        A backlog that the job would not process within its time for catching up is worth a cluster for that time.
        """
        facts = self._facts
        waiting = max(0.0, (facts.backlog or 0) - 2 * max(batch.records for batch in facts.batches))
        small = min(waiting / SMALL_CATCH_UP_S, SMALL_BACKLOG_SHARE_MAX * self._rate)
        return max(small, 1000 * waiting / facts.catch_up_ms)

    def _effect(self, parallelism: int) -> Effect:
        capacity = self._model.capacity(parallelism)
        return Effect(capacity, self._load / max(capacity, 1e-9), self._model.work_ms(parallelism))

    def _decision(
        self, verdict: ScalingVerdict, message: str, *, target: int | None = None, advice: str | None = None
    ) -> Decision:
        return Decision(
            verdict,
            self._at,
            self._at if target is None else target,
            message,
            advice,
            self._present,
            None if target is None else self._effect(target),
            self._outcome,
            self._model.limit,
        )

    # --- the last move

    def _measured(self, last: MoveFacts) -> Decision | None:
        """Measures the last move; returns a decision unless the move has delivered."""
        if last.after != self._at:
            self._outcome = ScalingOutcome.REPLACED
            return None
        if self._facts.at_ms - last.ended_at_ms < MEASURED_AFTER_MS or self._facts.limits.is_excluded:
            return self._decision(_V.COOLING_DOWN, f"the effect of {last.before} to {last.after} is measured soon")
        keeps_up = self._present.utilization <= UTILIZATION_MAX
        saved_ms, promised_ms = (last.work_ms_before - each for each in (self._present.work_ms, last.work_ms_expected))
        is_delivered = saved_ms >= DELIVERED_SHARE * promised_ms if last.is_up else keeps_up
        self._outcome = ScalingOutcome.DELIVERED if is_delivered else ScalingOutcome.NOT_DELIVERED
        limits = self._facts.limits
        if is_delivered or not limits.parallelism_min <= last.before <= limits.parallelism_max:
            return None
        before_ms = max(last.work_ms_before, 1e-9)
        what = (
            f"changed the work of a record by {-saved_ms / before_ms:+.0%} instead of {-promised_ms / before_ms:+.0%}"
            if last.is_up
            else f"left too little: {self._said()}"
        )
        return self._decision(_V.UNDO, f"the move from {last.before} to {last.after} {what}", target=last.before)

    # --- up

    def _up(self, last: MoveFacts | None) -> Decision:
        limits, needed = self._facts.limits, self._said()
        target = self._wanted(limits.parallelism_max) or self._nearest(limits.parallelism_max)
        if target is None:
            return self._unhelpful(needed)
        if self._facts.processor_wait >= OVERLOADED:
            return self._decision(
                _V.HOST_OVERLOADED,
                f"{needed}, but tasks wait for a processor for {self._facts.processor_wait:.0%} of their time",
                advice="Give the job hosts with more processors, or run fewer jobs on its hosts.",
            )
        if (bad := _remembered(self._facts, target)) is not None:
            helps = f"{needed}; {self._at} to {target} would help by the model"
            return self._decision(_V.NOT_DELIVERED, f"{helps}, but {_not_repeated(self._facts, bad)}")
        if limits.affordable is not None and target > limits.affordable:
            if limits.affordable <= self._at:
                return self._decision(
                    _V.BUDGET,
                    f"{needed}; {target} subtasks would help, but the day's core hours are used up",
                    advice="Raise autoscaler.core_hours_per_day.",
                )
            target = limits.affordable
        gain = self._effect(target).capacity / self._present.capacity
        return self._gated(last, target, f"{needed}, and {target} subtasks process {gain:.1f} times as much")

    def _wanted(self, parallelism_max: int) -> int | None:
        """Returns the smallest parallelism that suffices and is worth its cost.

        Where none suffices, it is the largest that doublings reach, each of which helps.
        """
        for target in candidates(self._at + 1, parallelism_max):
            if self._effect(target).utilization <= UTILIZATION_AIM:
                return target if self._is_worth(target) else None
        reached = self._at
        while reached < parallelism_max:
            target = min(2 * reached, parallelism_max)
            gain = self._model.capacity(target) / self._model.capacity(reached)
            if gain < DOUBLING_MIN ** ((target / reached) - 1):
                break
            reached = target
        return reached if reached > self._at else None

    def _nearest(self, parallelism_max: int) -> int | None:
        """Returns the largest parallelism worth its cost.

        None if no parallelism beyond the maximum would help.
        """
        if not self._helps_beyond(parallelism_max):
            return None
        worth = (each for each in candidates(self._at + 1, parallelism_max) if self._is_worth(each))
        return max(worth, default=None)

    def _helps_beyond(self, parallelism_max: int) -> bool:
        """Returns whether a parallelism beyond the maximum would help."""
        return self._wanted(min(2 * parallelism_max, self._facts.key_groups)) is not None

    def _is_worth(self, target: int) -> bool:
        gain = self._effect(target).capacity / self._present.capacity - 1
        return gain >= EFFICIENCY_MIN * (target / self._at - 1)

    def _unhelpful(self, needed: str) -> Decision:
        """Returns why a larger parallelism does not help."""
        model, most, key_groups = self._model, self._facts.limits.parallelism_max, self._facts.key_groups
        if self._helps_beyond(most):
            return self._decision(
                _V.NO_SLOTS,
                f"{needed}; more subtasks would help, but the limit is {most}",
                advice="Raise autoscaler.parallelism_max, or parallelism_limit, which reserves task slots.",
            )
        records, hot = model.records(self._at), model.hot_key_group
        present, least = model.terms(records, self._at), model.terms(records, key_groups)
        largest = max(least._fields, key=lambda name: getattr(least, name))
        if largest == "work" and hot is not None and hot.share * key_groups >= HOT_KEY_GROUPS:
            return self._decision(
                _V.HOT_KEY_GROUP,
                f"{needed}; key group {hot.key_group} of operator {hot.operator} has {hot.share:.0%} of the records,"
                " which one subtask must process",
                advice="Add a part to the key that spreads its records, and combine the results in a second operator.",
            )
        share = f"{getattr(present, largest) / present.batch_ms:.0%} of a batch's time"
        verdict, what, advice = _TERMS[largest]
        splits = self._facts.splits
        if verdict is _V.SOURCE_LIMITED and splits is not None:
            what += f", and the source has {counted(splits, 'split')}"
        return self._decision(verdict, f"{needed}; {what}: {share}, at any parallelism", advice=advice)

    # --- down

    def _down(self, last: MoveFacts | None) -> Decision | None:
        facts = self._facts
        is_behind = (facts.backlog or 0) > 2 * max(batch.records for batch in facts.batches)
        if is_behind or facts.observed_ms < UP_TO_DOWN_MS:
            return None
        peak = max(self._rate, facts.rate_peak)
        fits = (
            target
            for target in candidates(facts.limits.parallelism_min, self._at - 1)
            if peak <= UTILIZATION_DOWN * self._model.capacity(target)
        )
        target = next(fits, None)
        if target is None or _remembered(self._facts, target) is not None:
            return None
        share = peak / self._model.capacity(target)
        return self._gated(
            last, target, f"the highest input takes {share:.0%} of the capacity of {counted(target, 'subtask')}"
        )

    # --- both

    def _gated(self, last: MoveFacts | None, target: int, reason: str) -> Decision:
        """Returns the move, unless it must wait."""
        if self._facts.limits.is_excluded:
            return self._decision(_V.EXCLUDED_HOURS, f"{self._at} to {target} waits: {_EXCLUDED}")
        wait_ms = _cooldown_ms(last, is_up=target > self._at)
        passed_ms = self._facts.at_ms - last.ended_at_ms if last is not None else wait_ms
        if passed_ms < wait_ms:
            left = duration_text(wait_ms - passed_ms)
            return self._decision(
                _V.COOLING_DOWN, f"{self._at} to {target} waits for {left}, as the job has just moved"
            )
        verdict = _V.SCALE_UP if target > self._at else _V.SCALE_DOWN
        return self._decision(verdict, f"{self._at} to {target}: {reason}", target=target)


def candidates(least: int, most: int) -> Iterator[int]:
    """Yields the parallelisms to try, which are at most a thirty-second apart.

    Trying each of a thousand would take a second.
    """
    while least <= most:
        yield least
        least += max(1, least // 32)


def _cooldown_ms(last: MoveFacts | None, *, is_up: bool) -> int:
    if last is None:
        return 0
    if is_up:
        return UP_COOLDOWN_MS if last.is_up else DOWN_COOLDOWN_MS
    return UP_TO_DOWN_MS if last.is_up else DOWN_COOLDOWN_MS


_TERMS = {
    "work": (_V.FUNCTION_SLOW, "functions and state dominate", "Make the function faster."),
    "overhead": (
        _V.FIXED_COST,
        "a fixed cost dominates",
        "Let a batch take more records: raise max_records_per_batch, or the limit of Spark's source.",
    ),
    "input": (
        _V.SOURCE_LIMITED,
        "reading and moving the records dominates",
        "Give the source more partitions, and records fewer or smaller columns.",
    ),
    "store": (
        _V.STORE_SLOW,
        "tasks wait for the object store",
        "Use an object store near the job, or larger batches.",
    ),
    "sink": (
        _V.SINK_SLOW,
        "the sinks dominate",
        "Give the sink's system more room: indexes, partitions, connections, network.",
    ),
}
