"""The snapshots of subtasks in a new savepoint: written from entries, or changed from those of another snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.state.documents.manifest import Manifest, SnapshotKind
from keyscale.state.engine.engine import Mutation
from keyscale.state.inspection.fetched_shards import close_all, open_fetched
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.schema import TimersSchema, schema_of_key
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.operator_state.backend import Distribution, OperatorStateSnapshot, StoredOperatorState
from keyscale.state.operator_state.operator_files import read_operator_state
from keyscale.state.serializers.key_columns import EncodedColumn
from keyscale.state.writing import subtask_writer
from keyscale.state.writing.changed_subtask import store_changed
from keyscale.state.writing.entry_sorter import EntrySorter
from keyscale.state.writing.new_savepoint import NewSavepoint
from keyscale.state.writing.row_encoder import KeyHashing, RowsInvalidError, StoredEntries
from keyscale.state.writing.subtask_writer import NewSubtask, SubtaskWriter

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.documents.manifest import SnapshotHandle
    from keyscale.state.keyed.schema import KeyedSchema

OWN = KeyGroupRange(2, 5)
SCHEMA = (
    schema_of_key(pa.schema([("id", pa.int64())]))
    .with_state(ValueStateDescriptor("a", pa.int64()).stored())
    .with_timers(TimersSchema("t"))
)
STATE = OperatorStateSnapshot({"places": StoredOperatorState(Distribution.SPLIT, "int64", (b"1", b"2"))})
ENTRIES = {"a": {b"\0\5x": b"1", b"\0\2y": b"2", b"\0\2x": b"3"}, "t": {b"\0\3t": b"4"}}


@pytest.fixture
def savepoint(tmp_path: Path) -> NewSavepoint:
    """A savepoint of a job that is derived from its checkpoint after batch 9."""
    base = Manifest(
        JobId("job"),
        CheckpointId(7),
        SnapshotKind.CHECKPOINT,
        Attempt(3),
        BatchId(9),
        0,
        8,
        HashId.SPARK,
        created_at_ms=0,
        operators=(),
    )
    return NewSavepoint.at(f"file://{tmp_path}/store/job/savepoints/s", KeyHashing(8), base=base)


def stored(entries: dict[bytes, bytes]) -> StoredEntries:
    return StoredEntries(EncodedColumn.of([*entries]), EncodedColumn.of([*entries.values()]))


def write(
    savepoint: NewSavepoint,
    scratch: Path,
    *,
    schema: KeyedSchema | None = SCHEMA,
    operator_state: OperatorStateSnapshot | None = STATE,
) -> SnapshotHandle:
    with SubtaskWriter(NewSubtask(savepoint, "count", schema, 1, OWN), scratch) as writer:
        for family, entries in ENTRIES.items() if schema is not None else ():
            for key, value in entries.items():
                writer.add(family, stored({key: value}))
        return writer.finish(operator_state)


def content(savepoint: NewSavepoint, handle: SnapshotHandle, scratch: Path) -> dict[str, dict[bytes, bytes]]:
    opened = open_fetched(savepoint.store(), [handle], handle.key_groups, scratch)
    try:
        return {
            family: dict(engine.scan(family, b"", None))
            for _, engine in opened
            for family in engine.families()
            if list(engine.scan(family, b"", None))
        }
    finally:
        close_all(opened)


def test_a_written_subtask_has_its_entries_and_the_facts_of_its_savepoint(
    savepoint: NewSavepoint, tmp_path: Path
) -> None:
    handle = write(savepoint, tmp_path / "scratch")
    assert (handle.subtask, handle.key_groups, handle.batch_id, handle.schema) == (1, OWN, 9, SCHEMA)
    assert [shard.key_groups for shard in handle.shards] == [OWN]
    assert content(savepoint, handle, tmp_path / "read") == ENTRIES
    assert handle.operator_state_file is not None
    assert read_operator_state(savepoint.store(), handle.operator_state_file) == STATE
    assert all(file.path.startswith("job/savepoints/s/") for file in handle.files())
    assert {file.path.rpartition("-")[0][-2:] for file in handle.files() if file.shared} == {"-3"}, "the attempt"
    assert list((tmp_path / "scratch").iterdir()) == []
    again = write(savepoint, tmp_path / "scratch")
    assert again.lineage != handle.lineage


def test_a_subtask_may_have_operator_state_alone_or_nothing(savepoint: NewSavepoint, tmp_path: Path) -> None:
    alone = write(savepoint, tmp_path / "scratch", schema=None)
    assert (alone.schema, content(savepoint, alone, tmp_path / "read")) == (None, {})
    assert alone.operator_state_file is not None
    nothing = write(savepoint, tmp_path / "scratch", schema=None, operator_state=OperatorStateSnapshot())
    assert nothing.operator_state_file is None


def test_the_states_of_a_subtask_share_the_memory_for_their_entries(
    savepoint: NewSavepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, KeyGroupRange, int]] = []

    class Noted(EntrySorter):
        def __init__(self, family: str, scratch: Path, key_groups: KeyGroupRange, memory_bytes: int) -> None:
            given.append((family, key_groups, memory_bytes))
            super().__init__(family, scratch, key_groups, memory_bytes)

    monkeypatch.setattr(subtask_writer, "EntrySorter", Noted)
    with SubtaskWriter(NewSubtask(savepoint, "count", SCHEMA, 1, OWN), tmp_path / "scratch", 1_001) as writer:
        for family in ("t", "a", "t"):
            writer.add(family, stored(ENTRIES[family]))
    assert given == [("t", OWN, 500), ("a", OWN, 500)], "one state and timers"


def test_two_entries_of_one_key_are_refused_and_leave_no_scratch_files(savepoint: NewSavepoint, tmp_path: Path) -> None:
    with SubtaskWriter(NewSubtask(savepoint, "count", SCHEMA, 1, OWN), tmp_path / "scratch") as writer:
        for value in (b"1", b"2"):
            writer.add("a", stored({b"\0\2x": value}))
        with pytest.raises(RowsInvalidError, match="'a': 1 rows have the key of another row"):
            writer.finish()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_changed_subtask_has_its_new_entries_and_all_else_of_its_snapshot(
    savepoint: NewSavepoint, tmp_path: Path
) -> None:
    before = write(savepoint, tmp_path / "scratch")
    store = savepoint.store()
    assert isinstance(store, LocalObjectStore)
    other = NewSavepoint.at(f"{store.url}/other/savepoints/changed", KeyHashing(8))
    opened = open_fetched(store, [before], OWN, tmp_path / "opened")
    scratch = tmp_path / "scratch"
    try:
        for _, engine in opened:
            engine.write([Mutation("a", b"\0\5x", b"changed")])
        more = SCHEMA.with_state(ValueStateDescriptor("b", pa.int64()).stored())
        after = store_changed(other, "count", before, [engine for _, engine in opened], schema=more, scratch=scratch)
    finally:
        close_all(opened)
    expected = {**ENTRIES, "a": {**ENTRIES["a"], b"\0\5x": b"changed"}}
    assert content(other, after, tmp_path / "read") == expected
    assert (after.subtask, after.key_groups, after.batch_id, after.schema) == (1, OWN, 9, more)
    assert [shard.key_groups for shard in after.shards] == [OWN]
    assert after.lineage != before.lineage
    assert after.operator_state_file is not None
    assert read_operator_state(store, after.operator_state_file) == STATE
    assert all(file.path.startswith("other/savepoints/changed/") for file in after.files())
    kept = {file.sha256 for file in before.files() if file.shared} & {file.sha256 for file in after.files()}
    assert kept, "a file of the snapshot is copied inside the store"
    assert list(scratch.iterdir()) == []
    store.delete([file.path for file in before.files()])
    assert content(other, after, tmp_path / "again") == expected
