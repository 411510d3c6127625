"""The increment of a checkpoint: what it has added to the store."""

from __future__ import annotations

from keyscale.jobs.runtime.driver.checkpoints import added_bytes
from keyscale.jobs.runtime.executor.subtask_jobs import StoredSubtask
from keyscale.state.documents.manifest import FileHandle, ShardHandle, SnapshotHandle
from keyscale.state.engine.key_group_sizes import KeyGroupSizes
from keyscale.state.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.layout import Layout

UID = OperatorUid("totals")


def stored(layout: Layout, index: int, uploaded_bytes: int, *files: tuple[str, int, int]) -> StoredSubtask:
    """A subtask's part; each file has a content, the checkpoint that has stored it, and a size."""
    handles = tuple(
        FileHandle("1.sst", layout.shared_file(content, Attempt(2), CheckpointId(number)), size, content, shared=True)
        for content, number, size in files
    )
    shard = ShardHandle(0, 127, handles)
    handle = SnapshotHandle(SubtaskIndex(index), 0, 127, BatchId(9), "x", (shard,))
    return StoredSubtask(UID, handle, uploaded_bytes, 0, 0, 0, 0, KeyGroupSizes((), ()))


def test_an_object_that_several_subtasks_have_stored_counts_once():
    layout = Layout(JobId("j"))
    parts = [
        stored(layout, 0, 107, ("a", 17, 100)),  # and 7 bytes of files of its own
        stored(layout, 1, 107, ("a", 17, 100)),
        stored(layout, 2, 50, ("old", 16, 400), ("b", 17, 50)),
        stored(layout, 3, 0, ("old", 16, 400)),
    ]
    assert added_bytes(parts, Attempt(2), CheckpointId(17)) == [107, 7, 50, 0]
