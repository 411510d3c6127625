"""The report of a checkpoint's parts: what each has added to the store, and its times."""

from __future__ import annotations

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.driver.checkpoints import added_bytes, subtask_report
from keyscale.jobs.runtime.executor.subtask_jobs import StoredSubtask
from keyscale.state.documents.manifest import FileHandle, ShardHandle, SnapshotHandle
from keyscale.state.engine.key_group_sizes import KeyGroupSizes
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


def test_the_report_of_a_part_has_its_own_times_and_sizes():
    shards = (ShardHandle(3, 5, (FileHandle("1.sst", "a", 60, "a", shared=True), FileHandle("M", "b", 7, "b"))),)
    handle = SnapshotHandle(SubtaskIndex(2), 3, 5, BatchId(9), "x", shards)
    part = StoredSubtask(UID, handle, 67, 1010, 20, 300, 1400, KeyGroupSizes((1, 2, 3), (10, 20, 37)))
    report = subtask_report(part, 50, 40, triggered_at_ms=1000, with_key_groups=True)
    assert (report.operator_uid, report.index, report.key_group_start, report.key_group_end) == ("totals", 2, 3, 5)
    assert (report.ack_timestamp, report.end_to_end_duration, report.start_delay) == (1400, 400, 10)
    assert (report.sync_duration, report.async_duration) == (20, 300)
    assert (report.checkpointed_size, report.state_size, report.distinct_size, report.files) == (50, 67, 40, 2)
    assert (report.entries, report.key_group_entries, report.key_group_bytes) == (6, [1, 2, 3], [10, 20, 37])
    earlier = subtask_report(part, 50, 40, triggered_at_ms=2000, with_key_groups=False)
    assert (earlier.end_to_end_duration, earlier.start_delay) == (0, 0), "the clocks of two hosts differ"
    assert (earlier.entries, earlier.key_group_entries, earlier.key_group_bytes) == (6, [], [])
