"""`./keyscale bench autoscaler`: three rules of scaling on played traces.

A played job has batches of known cost, so that each rule meets exactly the same load. Nothing runs: a trace of half an
hour takes a fraction of a second.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Protocol

from bench.table import Table, count, decimal
from keyscale.api.autoscaling.decision import REMEMBERED_MS, decide
from keyscale.api.autoscaling.facts import BatchFacts, Disturbance, Limits, MoveFacts, OperatorFacts, ScalingFacts
from keyscale.state.doors.values import KeyGroupRanges
from keyscale.vocabulary import ScalingOutcome, ScalingVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.api.autoscaling.decision import Decision

KEY_GROUPS, SLOTS = 128, 16
HOT_GROUP = 37
EVALUATION_S = 15.0
SAMPLE_S = 10.0
RATE_WINDOW, PEAK_WINDOW = 6, 60  # samples
BATCHES_KEPT = 12
PAUSE_S = 1.0
"""The pause of a rescale, as of a live rescale."""
FAILED_BATCH_S = 10.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Trace:
    """A job's true costs and its load.

    Attributes:
        name: Its name in the table.
        rate: The records that arrive per second, at a time in seconds.
        seconds: How long the trace is.
        parallelism: The parallelism at its begin.
        fixed_s: The time of a batch without records.
        input_us: Time per record to read and move it, at any parallelism.
        work_us: Time per record of functions and state.
        sink_us: Time per record of the sink.
        hot: The share of one key group.
        batch_max: Records per batch at most.
        failing: The share of batches that fail.
        outage: When the object store does not answer, in seconds.
        processors: Processors for the subtasks; None: one each.
        noise: The random part of a batch's time.
    """

    name: str
    rate: Callable[[float], float]
    seconds: float = 1800.0
    parallelism: int = 2
    fixed_s: float = 0.35
    input_us: float = 0.0
    work_us: float = 53.0
    sink_us: float = 0.0
    hot: float = 0.0
    batch_max: int = 400_000
    failing: float = 0.0
    outage: tuple[float, float] | None = None
    processors: int | None = None
    noise: float = 0.1


@cache
def shares(hot: float, parallelism: int) -> tuple[float, ...]:
    """Returns each subtask's share of the records.

    One key group has the share `hot`.
    """
    ranges = KeyGroupRanges.of_count(KEY_GROUPS, parallelism)
    return tuple(len(each) * (1 - hot) / KEY_GROUPS + hot * (HOT_GROUP in each) for each in ranges)


@dataclass(slots=True)
class PlayedJob:
    """A job in a trace: its batches, its backlog and its moves.

    Attributes:
        trace: Its costs and its load.
        parallelism: Its parallelism now.
        at_s: The time.
        backlog: Records that wait.
        batches: The batches since the last move.
        samples: Arrived and waiting records, each ten seconds.
        failed_at_s: When it failed last.
        away_until_s: When the store answered again.
        moves: Time, and parallelism before and after each move.
        slot_s: Parallelism by time.
        peak_s: The largest time in which as many records arrive as wait.
    """

    trace: Trace
    random: random.Random
    parallelism: int = 0
    at_s: float = 0.0
    backlog: float = 0.0
    arrived: float = 0.0
    batches: deque[BatchFacts] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    since_move: int = 0
    samples: list[tuple[float, float]] = field(default_factory=list)
    failed_at_s: float = -math.inf
    away_until_s: float = -math.inf
    moves: list[tuple[float, int, int]] = field(default_factory=list)
    slot_s: float = 0.0
    peak_s: float = 0.0

    def __post_init__(self) -> None:
        self.parallelism = self.trace.parallelism

    @property
    def lag_s(self) -> float:
        """The time in which as many records arrive as wait."""
        return self.backlog / max(1.0, self.trace.rate(self.at_s))

    def run_batch(self) -> None:
        """Runs a batch: its records wait already, and others arrive meanwhile."""
        trace = self.trace
        if trace.outage is not None and trace.outage[0] <= self.at_s < trace.outage[1]:
            self.away_until_s = trace.outage[1]
            self._pass(EVALUATION_S)
            return
        records = int(min(trace.batch_max, self.backlog))
        processors = trace.processors or self.parallelism
        crowded = max(1.0, self.parallelism / processors)
        parts = {
            "spark_ms": 1000 * trace.fixed_s + records * trace.input_us / 1000,
            "work_ms": records * trace.work_us / 1000 * max(shares(trace.hot, self.parallelism)) * crowded,
            "sink_ms": records * trace.sink_us / 1000,
        }
        noisy = {
            name: part * self.random.uniform(1 - trace.noise, 1 + 1.5 * trace.noise) for name, part in parts.items()
        }
        if trace.failing and self.random.random() < trace.failing:
            self.failed_at_s = self.at_s
            self._pass(FAILED_BATCH_S)
            return
        self.backlog -= records
        self._pass(sum(noisy.values()) / 1000)
        self.since_move += 1
        if records and self.since_move > 1:
            self.batches.append(BatchFacts(records, **noisy))

    def _pass(self, seconds: float) -> None:
        ends_s = self.at_s + seconds
        while self.at_s < ends_s:
            step_s = min(1.0, ends_s - self.at_s)
            arrives = self.trace.rate(self.at_s) * step_s
            self.arrived += arrives
            self.backlog += arrives
            self.at_s += step_s
            self.slot_s += self.parallelism * step_s
        self.peak_s = max(self.peak_s, self.lag_s)
        while len(self.samples) * SAMPLE_S <= self.at_s:
            self.samples.append((len(self.samples) * SAMPLE_S, self.arrived))

    def move(self, parallelism: int) -> None:
        """Rescales the job."""
        self.moves.append((self.at_s, self.parallelism, parallelism))
        self.parallelism = parallelism
        self.batches.clear()
        self.since_move = 0
        self._pass(PAUSE_S)

    def rates(self) -> list[float]:
        """Returns the rate of arrival over each minute of the last ten."""
        recent = self.samples[-PEAK_WINDOW - RATE_WINDOW :]
        pairs = zip(recent, recent[RATE_WINDOW:], strict=False)
        return [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in pairs if later[0] > earlier[0]]

    def facts(self, moves: Sequence[MoveFacts], batch_limit: int | None) -> ScalingFacts:
        """Returns what the autoscaler knows about the job."""
        rates = self.rates() or [self.trace.rate(self.at_s)]
        records = self.batches[-1].records if self.batches else 0
        work_ms = self.batches[-1].work_ms if self.batches else 0.0
        hot = int(records * (self.trace.hot + (1 - self.trace.hot) / KEY_GROUPS))
        return ScalingFacts(
            at_ms=int(1000 * self.at_s),
            parallelism=self.parallelism,
            key_groups=KEY_GROUPS,
            limits=Limits(1, SLOTS),
            batches=tuple(self.batches),
            operators=(
                OperatorFacts(
                    "counts",
                    work_ms,
                    tuple(int(records * share) for share in shares(self.trace.hot, self.parallelism)),
                    {HOT_GROUP: hot},
                ),
            ),
            rate=rates[-1],
            rate_peak=max(rates),
            observed_ms=int(1000 * min(self.at_s, PEAK_WINDOW * SAMPLE_S)),
            backlog=int(self.backlog),
            batch_limit=batch_limit,
            disturbance=self._disturbance(),
            moves=moves,
        )

    def _disturbance(self) -> Disturbance | None:
        if self.at_s <= self.away_until_s:
            return Disturbance(ScalingVerdict.OUTAGE, "the object store does not answer")
        if self.at_s - self.failed_at_s < 600:
            return Disturbance(ScalingVerdict.FAILING, "the job has failed in the last ten minutes")
        return None


class Rule(Protocol):
    """Chooses a job's parallelism."""

    name: str

    @property
    def said(self) -> str:
        """The verdicts, as a text."""
        return ""

    def target(self, job: PlayedJob) -> int | None:
        """Returns another parallelism, or None."""


class Autoscaler(Rule):
    """Keyscale's autoscaler, with the memory that the database has."""

    name = "Keyscale"

    def __init__(self) -> None:
        self.moves: list[MoveFacts] = []
        self.decisions: list[Decision] = []

    @property
    def said(self) -> str:
        """The verdicts in the order of their first use."""
        quiet = {ScalingVerdict.WARMING_UP, ScalingVerdict.COOLING_DOWN, ScalingVerdict.STEADY}
        return (
            ", ".join(dict.fromkeys(each.verdict for each in self.decisions if each.verdict not in quiet)) or "STEADY"
        )

    def target(self, job: PlayedJob) -> int | None:
        now_ms = int(1000 * job.at_s)
        known = [move for at, move in enumerate(self.moves) if at == 0 or now_ms - move.ended_at_ms < REMEMBERED_MS]
        decision = decide(job.facts(known, self.decisions[-1].batch_limit if self.decisions else None))
        self.decisions.append(decision)
        if decision.outcome is not None:
            last = self.moves[0]
            self.moves[0] = MoveFacts(last.ended_at_ms, last.before, last.after, decision.outcome)
        if not decision.is_move:
            return None
        present, expected = decision.present, decision.expected
        is_measured = present is not None and decision.verdict is not ScalingVerdict.UNDO
        self.moves.insert(
            0,
            MoveFacts(
                now_ms,
                job.parallelism,
                decision.target,
                ScalingOutcome.PENDING if is_measured else ScalingOutcome.DELIVERED,
                present.work_ms if present else 0.0,
                expected.work_ms if expected else 0.0,
            ),
        )
        return decision.target


class DoubleWhenBusy(Rule):
    """Doubles a busy job, and halves an idle one."""

    name = "double when busy"

    def __init__(self) -> None:
        self._rests_until_s = 0.0

    def target(self, job: PlayedJob) -> int | None:
        if len(job.batches) < 6 or job.at_s < self._rests_until_s:
            return None
        busy = _busy_ratio(job)
        if busy > 0.8 and job.parallelism < KEY_GROUPS:
            chosen = min(KEY_GROUPS, 2 * job.parallelism)
        elif busy < 0.3 and job.parallelism > 1:
            chosen = job.parallelism // 2
        else:
            return None
        self._rests_until_s = job.at_s + 60
        return chosen


class FlinksRules(Rule):
    """The rules of Flink's autoscaler with their defaults, on one vertex.

    Source: `AutoScalerOptions`, `ScalingMetricEvaluator` and `JobVertexScaler` of Flink's Kubernetes operator. The true
    processing rate is the rate while subtasks and sink are busy; the fixed cost of a batch does not count, as Flink has
    none. Its limit of 200 is the number of key groups here.
    """

    name = "Flink's rules"
    window_s, stabilization_s, grace_s = 900.0, 300.0, HOUR_S
    utilization, boundary, down_factor = 0.7, 0.3, 0.6
    catch_up_s, restart_s = 1800.0, 300.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float, float]] = deque()
        self._up_at_s, self._moved_at_s = -math.inf, 0.0

    def target(self, job: PlayedJob) -> int | None:
        if job.at_s - self._moved_at_s < self.stabilization_s or not job.batches:
            self._seen.clear()
            return None
        busy_s = sum(each.work_ms + each.sink_ms for each in job.batches) / 1000
        true_rate = sum(each.records for each in job.batches) / max(busy_s, 1e-9)
        self._seen.append((job.at_s, true_rate, (job.rates() or [0.0])[-1], job.backlog))
        while job.at_s - self._seen[0][0] > self.window_s:
            self._seen.popleft()
        if job.at_s - self._seen[0][0] < 60:
            return None
        true_rate = sum(each[1] for each in self._seen) / len(self._seen)
        rate = sum(each[2] for each in self._seen) / len(self._seen)
        lag = self._seen[-1][3]
        wanted = rate + lag / self.catch_up_s
        if wanted / (self.utilization + self.boundary) <= true_rate <= wanted / (self.utilization - self.boundary):
            return None
        with_restart = wanted + rate * self.restart_s / self.catch_up_s
        factor = max(with_restart / self.utilization / true_rate, 1 - self.down_factor)
        chosen = min(KEY_GROUPS, max(1, math.ceil(job.parallelism * factor)))
        if chosen == job.parallelism or (chosen < job.parallelism and job.at_s - self._up_at_s < self.grace_s):
            return None
        self._moved_at_s = job.at_s
        self._up_at_s = job.at_s if chosen > job.parallelism else self._up_at_s
        return chosen


def _busy_ratio(job: PlayedJob) -> float:
    """Returns the share of the time that is not idle.

    Batches follow each other while records wait.
    """
    work_ms = sum(each.work_ms + each.sink_ms for each in job.batches)
    whole_ms = sum(each.spark_ms + each.work_ms + each.sink_ms for each in job.batches)
    return 1.0 if job.backlog > 2 * job.batches[-1].records else work_ms / whole_ms


def play(trace: Trace, rule: Rule, seed: int = 5) -> PlayedJob:
    """Plays a trace under a rule; returns the job at its end."""
    job = PlayedJob(trace, random.Random(seed))
    evaluated_s = 0.0
    while job.at_s < trace.seconds:
        job.run_batch()
        if job.at_s - evaluated_s >= EVALUATION_S:
            evaluated_s = job.at_s
            target = rule.target(job)
            if target is not None and target != job.parallelism:
                job.move(target)
    return job


def step(before: float, between: float, *, begin_s: float = 300, end_s: float = 900) -> Callable[[float], float]:
    """Returns a rate with another level for a while."""
    return lambda at_s: between if begin_s <= at_s < end_s else before


def flat(rate: float) -> Callable[[float], float]:
    """Returns a constant rate."""
    return lambda _: rate


def day(least: float, most: float, day_s: float = 24 * HOUR_S) -> Callable[[float], float]:
    """Returns the rate of a daily curve."""
    return lambda at_s: least + (most - least) * (1 - math.cos(2 * math.pi * at_s / day_s)) / 2


def noisy(rate: float, noise: float, seed: int = 7) -> Callable[[float], float]:
    """Returns a rate that changes every 20 seconds."""
    chosen = random.Random(seed)
    levels = [rate * chosen.uniform(1 - noise, 1 + noise) for _ in range(10_000)]
    return lambda at_s: levels[int(at_s / 20) % len(levels)]


TRACES = (
    Trace("load step 20k-110k-20k/s", step(20_000, 110_000)),
    Trace("daily curve 10k-150k/s", day(10_000, 150_000), seconds=24 * HOUR_S),
    Trace("noise of 15 % at 60k/s", noisy(60_000, 0.15), parallelism=6, seconds=HOUR_S),
    Trace("slow sink, 40 us/record", flat(30_000), sink_us=40),
    Trace("hot key group, 60 %", flat(45_000), hot=0.6),
    Trace("failing, 10 % of batches", flat(30_000), failing=0.1),
    Trace("store away for 5 minutes", flat(60_000), parallelism=6, outage=(600, 900), seconds=HOUR_S),
    Trace("slow reading, 40 us/record", flat(30_000), input_us=40),
    Trace("batches of at most 2,000", flat(8_000), batch_max=2000),
    Trace("two processors", flat(60_000), processors=2),
)
RULES: tuple[type[Rule], ...] = (Autoscaler, DoubleWhenBusy, FlinksRules)


def run_autoscaler() -> Table:
    """Plays each trace under each rule."""
    table = Table(
        "The autoscaler on played traces; 16 task slots, live rescales",
        ("trace", "rule", "moves", "last parallelism", "peak lag s", "last lag s", "slot hours", "verdicts"),
    )
    for trace in TRACES:
        for make in RULES:
            rule = make()
            job = play(trace, rule)
            table.add(
                trace.name,
                rule.name,
                count(len(job.moves)),
                count(job.parallelism),
                decimal(job.peak_s),
                decimal(job.lag_s),
                decimal(job.slot_s / HOUR_S),
                rule.said or "-",
            )
    table.notes.append("lag: the time in which as many records arrive as wait; slot hours: parallelism by time")
    table.notes.append(
        "Flink's rules see the time in which subtasks and sink are busy; a rescale pauses each job for 1 s"
    )
    return table
