"""What a job has committed: where the next batch starts, and all that a checkpoint has to capture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jobs.runtime.task import SubtaskStart
from state.job_time import JobTime
from state.log import OperatorHistory
from state.restore import plan_operator, version_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.runtime.batch import BatchOutcome
    from jobs.runtime.body import NextTimers
    from state.identifiers import BatchId, OperatorUid
    from state.log import ResumePoint
    from state.manifest import Manifest
    from state.subtask import SubtaskSpec


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The state after the batch that was committed last.

    Attributes:
        batch_id: That batch; -1 before any.
        starts: Each subtask's version after it, and what leads there, by operator and index.
        positions: Files of Spark's checkpoint directory when that batch was planned.
        sinks: Tokens of its output.
        log_position: The log up to here, inclusive, is contained.
        time: How far the job has come in time.
        timers: What this driver knows of each subtask's earliest timers, by operator and index; None where it knows nothing.
    """

    batch_id: BatchId
    starts: dict[OperatorUid, tuple[SubtaskStart, ...]]
    positions: dict[str, str]
    sinks: dict[str, str]
    log_position: int
    time: JobTime = field(default_factory=JobTime)
    timers: dict[OperatorUid, tuple[NextTimers | None, ...]] = field(default_factory=dict)

    @property
    def spark_batch_id(self) -> int:
        """Spark's own number of the last batch that it gave; -1 before any."""
        return self.batch_id - self.time.time_batches

    @property
    def is_empty(self) -> bool:
        """Whether no operator has any state."""
        return all(start.plan.is_empty for starts in self.starts.values() for start in starts)

    @classmethod
    def resumed(
        cls,
        resume: ResumePoint,
        specs: Mapping[OperatorUid, Sequence[SubtaskSpec]],
        positions: Mapping[str, str],
        log_position: int,
    ) -> CommittedState:
        """The state that an attempt begins with, divided among its own subtasks.

        Raises:
            CoverError: A checkpoint's snapshots miss or double a key group.
        """
        starts = {}
        for uid, subtasks in specs.items():
            history = resume.operators.get(uid, OperatorHistory())
            plans = plan_operator(history, subtasks[0].max_parallelism, len(subtasks))
            starts[uid] = tuple(
                SubtaskStart(version_of(plan, spec.key_group_range, resume.batch_id), plan)
                for spec, plan in zip(subtasks, plans, strict=True)
            )
        return cls(resume.batch_id, starts, dict(positions), dict(resume.sinks), log_position, resume.time)

    def after(
        self,
        batch_id: BatchId,
        outcome: BatchOutcome,
        positions: Mapping[str, str],
        log_position: int,
        time: JobTime | None = None,
    ) -> CommittedState:
        """The state after a further batch, which was committed at this position of the log; `time` is as it is then."""
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
        return CommittedState(batch_id, starts, dict(positions), sinks, log_position, time or self.time, timers)

    def rebased(self, manifest: Manifest) -> CommittedState:
        """The same state reached from a newer checkpoint of this attempt: fewer changelogs lead there."""
        starts = {}
        for operator in manifest.operators:
            starts[operator.uid] = tuple(
                SubtaskStart(start.version, start.plan.rebased(operator.subtasks, index, manifest.batch_id))
                for index, start in enumerate(self.starts[operator.uid])
            )
        return replace(self, starts=starts)
