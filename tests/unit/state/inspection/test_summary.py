"""A summary counts what a checkpoint stores, and has the numbers of its manifest under the same names."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from keyscale.state.inspection.checkpoint_reader import CheckpointReader
from keyscale.state.inspection.summary import CheckpointSummary, KeyGroupSummary, SubtaskSummary, summarize
from keyscale.state.keys.key_groups import assign_to_key_group
from keyscale.state.layout import location_of
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import MAX_PARALLELISM, UID, StateJob

if TYPE_CHECKING:
    from pathlib import Path

KEYS = range(30)


def test_a_summary_has_the_numbers_of_the_manifest_and_counts_the_entries(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch(dict.fromkeys(KEYS, 1))
    manifest, _ = job.checkpoint("saved")
    summary = summarize(CheckpointReader.open(location_of(job.store.url, manifest.path), tmp_path / "scratch"))
    carried = [name for name in CheckpointSummary.__struct_fields__ if name != "operators"]
    assert {name: getattr(summary, name) for name in carried} == {name: getattr(manifest, name) for name in carried}
    (operator,), (written,) = summary.operators, manifest.operators
    assert (operator.uid, operator.parallelism, operator.key) == (UID, 2, (("id", "int64"),))
    (state,) = operator.states
    assert (state.name, state.entries) == ("count", len(KEYS))
    assert state.schema is not None
    assert operator.subtasks == tuple(
        SubtaskSummary(
            subtask=snapshot.subtask,
            key_group_start=snapshot.key_group_start,
            key_group_end=snapshot.key_group_end,
            shards=len(snapshot.shards),
            files=len(snapshot.distinct_files),
            file_bytes=snapshot.state_size_bytes,
        )
        for snapshot in written.subtasks
    )
    groups = Counter(assign_to_key_group((key,), MAX_PARALLELISM) for key in KEYS)
    entry_bytes = state.bytes // len(KEYS)
    assert operator.key_groups_with_state == len(groups)
    assert [each.entries for each in operator.largest_key_groups] == sorted(groups.values(), reverse=True)[:5]
    assert [
        KeyGroupSummary(each.key_group, groups[each.key_group], groups[each.key_group] * entry_bytes)
        for each in operator.largest_key_groups
    ] == [*operator.largest_key_groups]
