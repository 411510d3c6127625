from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.batch.batch_outcome import BatchOutcome
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.state.documents.changelog import ChangelogFormat, ChangelogHandle
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotHandle,
    SnapshotKind,
)
from keyscale.state.documents.rewind import Rewind
from keyscale.state.keyed.timer_service import NextTimers
from keyscale.state.keys.hashing import HashId
from keyscale.state.local.subtask_spec import SubtaskSpec
from keyscale.state.log.resolution import ResumePoint
from keyscale.state.restore.plan import version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

UID = OperatorUid("counts")
MAX_PARALLELISM = 8


def specs(parallelism: int) -> dict[OperatorUid, tuple[SubtaskSpec, ...]]:
    return {
        UID: tuple(
            SubtaskSpec(
                job_id=JobId("job"),
                operator_uid=UID,
                index=SubtaskIndex(index),
                parallelism=parallelism,
                max_parallelism=MAX_PARALLELISM,
                hash_id=HashId.SPARK,
                key_schema=pa.schema([("name", pa.string())]),
                attempt=Attempt(1),
            )
            for index in range(parallelism)
        )
    }


EMPTY = ResumePoint(
    batch_id=BatchId(-1),
    planned=None,
    positions={},
    operators={},
    next_position=1,
    attempt=Attempt(0),
    sinks={},
    max_parallelism=None,
    hash_id=None,
)


@dataclass
class History:
    """A job at one parallelism, and its changelogs by batch."""

    parallelism: int
    state: CommittedState

    @classmethod
    def begun(cls, parallelism: int) -> History:
        return cls(parallelism, CommittedState.resumed(EMPTY, specs(parallelism), {}, 1))

    def commit(self, changed: Sequence[bool]) -> None:
        batch_id = BatchId(self.state.batch_id + 1)
        changelogs = tuple(
            self._changelog(batch_id, spec) if has_changed else None
            for spec, has_changed in zip(specs(self.parallelism)[UID], changed, strict=True)
        )
        outcome = BatchOutcome({UID: changelogs}, {OperatorUid("files"): f"token {batch_id}"}, 1, 1, {})
        self.state = self.state.after(batch_id, outcome, {"offsets": str(batch_id)}, self.state.log_position + 2)

    def checkpoint(self) -> Manifest:
        snapshots = tuple(
            SnapshotHandle(
                spec.index,
                spec.key_group_range.start,
                spec.key_group_range.end,
                self.state.batch_id,
                start.version.lineage,
                (),
            )
            for spec, start in zip(specs(self.parallelism)[UID], self.state.starts[UID], strict=True)
        )
        return Manifest(
            job_id=JobId("job"),
            checkpoint_id=CheckpointId(1),
            kind=SnapshotKind.CHECKPOINT,
            attempt=Attempt(1),
            batch_id=self.state.batch_id,
            log_position=self.state.log_position,
            max_parallelism=MAX_PARALLELISM,
            hash_id=HashId.SPARK,
            created_at_ms=0,
            operators=(OperatorSnapshot(UID, self.parallelism, OperatorDeclaration(), snapshots),),
        )

    @staticmethod
    def _changelog(batch_id: BatchId, spec: SubtaskSpec) -> ChangelogHandle:
        return ChangelogHandle(
            path=f"{batch_id}-{spec.index}",
            size_bytes=1,
            sha256="0",
            format=ChangelogFormat.FRAMES,
            batch_id=batch_id,
            subtask=spec.index,
            key_group_start=spec.key_group_range.start,
            key_group_end=spec.key_group_range.end,
            mutations=1,
        )


@given(data=st.data(), parallelism=st.integers(1, 4), batches=st.integers(0, 12))
def test_every_plan_leads_to_its_version_whatever_was_committed_and_checkpointed(
    data: st.DataObject, parallelism: int, batches: int
) -> None:
    history = History.begun(parallelism)
    taken: Manifest | None = None
    for _ in range(batches):
        history.commit(data.draw(st.lists(st.booleans(), min_size=parallelism, max_size=parallelism)))
        action = data.draw(st.sampled_from(["nothing", "snapshot", "complete"]))
        if action == "snapshot":
            taken = history.checkpoint()
        if action == "complete" and taken is not None:
            history.state = history.state.rebased(taken)  # batches continued while it was uploaded
            taken = None
        for spec, start in zip(specs(parallelism)[UID], history.state.starts[UID], strict=True):
            assert version_of(start.plan, spec.key_group_range, history.state.batch_id) == start.version
    assert history.state.batch_id == batches - 1
    assert history.state.log_position == 1 + 2 * batches


def test_after_a_checkpoint_only_later_changelogs_are_replayed() -> None:
    history = History.begun(1)
    history.commit([True])
    taken = history.checkpoint()
    history.commit([True])
    [start] = history.state.rebased(taken).starts[UID]
    assert [snapshot.batch_id for snapshot in start.plan.snapshots] == [0]
    assert [changelog.batch_id for changelog in start.plan.changelogs] == [1]


def test_a_checkpoint_captures_the_state_after_the_last_batch() -> None:
    history = History.begun(2)
    history.commit([True, False])
    assert history.state.sinks == {"files": "token 0"}
    assert history.state.positions == {"offsets": "0"}


def test_a_new_job_has_nothing_to_restore_until_it_has_changed_something() -> None:
    history = History.begun(2)
    assert history.state.is_empty
    history.commit([False, False])
    assert history.state.is_empty
    history.commit([False, True])
    assert not history.state.is_empty
    assert not history.state.rebased(history.checkpoint()).is_empty


def test_the_base_of_plans_lasts_until_a_task_would_have_to_read_much_of_the_log_after_it() -> None:
    history = History.begun(2)
    begun = history.state.plan_base
    for _ in range(64):
        history.commit([True, False])
        assert history.state.plan_base is begun
    history.commit([True, False])
    renewed = history.state.plan_base
    assert renewed.log_position == history.state.log_position
    assert renewed.starts == history.state.starts


def test_a_checkpoint_is_a_new_base_of_plans() -> None:
    history = History.begun(2)
    history.commit([True, True])
    taken = history.checkpoint()
    history.commit([True, True])
    state = history.state.rebased(taken)
    assert state.plan_base.starts == state.starts != history.state.starts
    assert state.plan_base.log_position == state.log_position > taken.log_position, "the plans have the batch since"


def test_a_state_adds_what_a_batch_has_changed_and_keeps_the_rest() -> None:
    time, later = JobTime({UID: EventTime(5, 4)}, 0, 8), JobTime({UID: EventTime(7, 6)}, 1, 9)
    rewinds, begun = (Rewind(Attempt(1), BatchId(2)),), JobCounters(input_records=4)
    resumed = replace(EMPTY, batch_id=BatchId(3), sinks={"files": "before"}, time=time, counters=begun, rewinds=rewinds)
    state = CommittedState.resumed(resumed, specs(2), {"offsets": "3"}, 5)
    assert (state.batch_id, state.positions, state.sinks, state.log_position) == (
        3,
        {"offsets": "3"},
        {"files": "before"},
        5,
    )
    assert (state.time, state.counters, state.rewinds, state.timers) == (time, begun, rewinds, {})
    first, second, third = (NextTimers(event_ms=at) for at in range(3))

    def outcome(token: str, *timers: NextTimers | None) -> BatchOutcome:
        reports = tuple(TaskReport("run", UID, SubtaskIndex(at), next_timers=each) for at, each in enumerate(timers))
        return BatchOutcome({UID: (None, None)}, {OperatorUid("files"): token}, 10, 2, {UID: reports})

    state = state.after(BatchId(4), outcome("four", first, None), {"offsets": "4"}, 7, later)
    assert (state.timers, state.time) == ({UID: (first, None)}, later)
    state = state.after(BatchId(5), outcome("five", None, second), {"offsets": "5"}, 9)
    assert (state.timers, state.time) == ({UID: (first, second)}, later), "a subtask without work keeps its timers"
    state = state.after(BatchId(6), outcome("six", third, None), {"offsets": "6"}, 11)
    assert (state.batch_id, state.log_position, state.spark_batch_id) == (6, 11, 5)
    assert (state.timers, state.positions, state.sinks) == ({UID: (third, second)}, {"offsets": "6"}, {"files": "six"})
    assert (state.counters, state.rewinds) == (JobCounters(input_records=34, output_records=6), rewinds)
    divided = state.divided(specs(3), 12)
    assert (divided.timers, divided.log_position, len(divided.starts[UID])) == ({}, 12, 3), (
        "other subtasks, other timers"
    )
    assert (divided.plan_base.log_position, divided.plan_base.starts) == (12, divided.starts)
    assert replace(divided, timers=state.timers, log_position=11, starts=state.starts, base=state.base) == state
