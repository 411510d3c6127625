"""The state of a job after its last committed batch.

From it the next batch starts, and a checkpoint captures it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from keyscale.state.doors.catalogue import NOTHING_COUNTED, JobCounters
from keyscale.state.doors.commits import JobTime, OperatorHistory
from keyscale.state.doors.subtasks import history_of, plan_operator, version_of
from keyscale.state.doors.values import KeyGroupRanges

from ..executor.subtask_starts import SubtaskStart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.identifiers import BatchId, OperatorUid
    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.commits import ResumePoint, Rewind
    from keyscale.state.doors.keyed import NextTimers
    from keyscale.state.doors.subtasks import SubtaskSpec

    from .batch_outcome import BatchOutcome


_ENTRIES_AFTER_BASE_MAX = 128  # a task that must rebuild its state reads these entries, a few at a time


@dataclass(frozen=True, slots=True, eq=False)
class PlanBase:
    """The starts of all subtasks as of a commit log entry.

    Tasks find later plans from here on.

    Attributes:
        log_position: The position of the entry.
        starts: As in CommittedState.
    """

    log_position: int
    starts: dict[OperatorUid, tuple[SubtaskStart, ...]]


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The state after the last committed batch.

    Attributes:
        batch_id: The last committed batch; -1 before the first.
        starts: Each subtask's version after the batch, and the plan to rebuild it, by operator and index.
        positions: Files of Spark's checkpoint directory when the batch was planned.
        sinks: The tokens of the batch's output, by sink.
        log_position: The last position in the log that the state contains.
        time: The job's event times and number of time batches.
        timers: Each subtask's earliest timers, by operator and index; None if this driver does not know them.
        counters: The job's counters.
        rewinds: The rewinds in the job's history, the oldest first.
        base: An earlier state of the same attempt from which the log leads to this state, if any.
    """

    batch_id: BatchId
    starts: dict[OperatorUid, tuple[SubtaskStart, ...]]
    positions: dict[str, str]
    sinks: dict[str, str]
    log_position: int
    time: JobTime = field(default_factory=JobTime)
    timers: dict[OperatorUid, tuple[NextTimers | None, ...]] = field(default_factory=dict)
    counters: JobCounters = NOTHING_COUNTED
    rewinds: tuple[Rewind, ...] = ()
    base: PlanBase | None = None

    @property
    def plan_base(self) -> PlanBase:
        """The base from which tasks find their plans.

        Without an earlier state, this state is the base.
        """
        return self.base or PlanBase(self.log_position, self.starts)

    @property
    def spark_batch_id(self) -> int:
        """Spark's own number of its last batch; -1 before the first."""
        return self.batch_id - self.time.time_batches

    @property
    def is_empty(self) -> bool:
        """Whether no operator has any state."""
        return all(start.plan.is_empty for starts in self.starts.values() for start in starts)

    @property
    def changelogs_max(self) -> int:
        """The largest number of changelogs in a subtask's plan."""
        return max((len(start.plan.changelogs) for starts in self.starts.values() for start in starts), default=0)

    @classmethod
    def resumed(
        cls,
        resume: ResumePoint,
        specs: Mapping[OperatorUid, Sequence[SubtaskSpec]],
        positions: Mapping[str, str],
        log_position: int,
    ) -> CommittedState:
        """Divides a resume point's state among this attempt's subtasks.

        Raises:
            CoverError: A key group is missing in a checkpoint's snapshots, or in several of them.
        """
        starts = {
            uid: _starts(resume.operators.get(uid, OperatorHistory()), subtasks, resume.batch_id)
            for uid, subtasks in specs.items()
        }
        base = PlanBase(log_position, starts)
        return cls(
            resume.batch_id,
            starts,
            dict(positions),
            dict(resume.sinks),
            log_position,
            resume.time,
            counters=resume.counters,
            rewinds=resume.rewinds,
            base=base,
        )

    def divided(self, specs: Mapping[OperatorUid, Sequence[SubtaskSpec]], log_position: int) -> CommittedState:
        """Divides the same state among the subtasks of another attempt.

        Args:
            specs: The subtasks, at any parallelism.
            log_position: The position of the last entry of the commit log.

        Raises:
            CoverError: A key group is missing in the plans of the present subtasks, or in several of them.
        """
        starts = {uid: _starts(history, specs[uid], self.batch_id) for uid, history in self.histories().items()}
        base = PlanBase(log_position, starts)
        return replace(self, starts=starts, log_position=log_position, timers={}, base=base)

    def histories(self) -> dict[OperatorUid, OperatorHistory]:
        """Returns what the plans of each operator's subtasks divide."""
        return {uid: history_of([start.plan for start in starts]) for uid, starts in self.starts.items()}

    def after(
        self,
        batch_id: BatchId,
        outcome: BatchOutcome,
        positions: Mapping[str, str],
        log_position: int,
        time: JobTime | None = None,
    ) -> CommittedState:
        """Returns the state after the next batch.

        The batch is committed at this position of the log; `time` is the job's time after the batch.
        """
        starts = {
            uid: tuple(
                SubtaskStart(
                    start.version.advanced(batch_id, changelog.path if changelog else None),
                    start.plan.followed_by(changelog),
                )
                for start, changelog in zip(self.starts[uid], changelogs, strict=True)
            )
            for uid, changelogs in outcome.changelogs.items()
        }
        sinks = {str(uid): token for uid, token in outcome.sinks.items()}
        timers = {
            uid: tuple(
                report.next_timers or known
                for report, known in zip(reports, self.timers.get(uid, (None,) * len(reports)), strict=True)
            )
            for uid, reports in outcome.reports.items()
        }
        base = self.base
        if base is not None and log_position - base.log_position > _ENTRIES_AFTER_BASE_MAX:
            base = PlanBase(log_position, starts)
        counters = self.counters.plus(outcome.counters)
        return CommittedState(
            batch_id,
            starts,
            dict(positions),
            sinks,
            log_position,
            time or self.time,
            timers,
            counters,
            self.rewinds,
            base,
        )

    def rebased(self, manifest: Manifest) -> CommittedState:
        """Returns the same state, based on a newer checkpoint of this attempt.

        Fewer changelogs then rebuild it.

        Raises:
            ValueError: The checkpoint is of an attempt with another parallelism.
        """
        starts = {}
        for operator in manifest.operators:
            starts[operator.uid] = tuple(
                SubtaskStart(start.version, start.plan.rebased(operator.subtasks, index, manifest.batch_id))
                for index, (start, _) in enumerate(zip(self.starts[operator.uid], operator.subtasks, strict=True))
            )
        return replace(self, starts=starts, base=PlanBase(self.log_position, starts))


def _starts(history: OperatorHistory, subtasks: Sequence[SubtaskSpec], batch_id: BatchId) -> tuple[SubtaskStart, ...]:
    plans = plan_operator(history, KeyGroupRanges.joined(spec.key_group_range for spec in subtasks))
    return tuple(
        SubtaskStart(version_of(plan, spec.key_group_range, batch_id), plan)
        for spec, plan in zip(subtasks, plans, strict=True)
    )
