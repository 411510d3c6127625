from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.batch import BatchOutcome
from jobs.runtime.committed import CommittedState
from state.changelog import ChangelogFormat, ChangelogHandle
from state.hashing import HashId
from state.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from state.log import ResumePoint
from state.manifest import Manifest, OperatorFacts, OperatorSnapshot, SnapshotHandle, SnapshotKind
from state.restore import version_of
from state.subtask import SubtaskSpec

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
            operators=(OperatorSnapshot(UID, self.parallelism, OperatorFacts(), snapshots),),
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
            history.state = history.state.rebased(taken)  # batches went on while it was uploaded
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


def test_what_a_batch_left_behind_is_what_a_checkpoint_captures() -> None:
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
