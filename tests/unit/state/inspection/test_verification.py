"""A verification and a summary of a snapshot: what is counted once, what is a problem, and in which words."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.manifest import (
    FileHandle,
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    ShardHandle,
    SnapshotHandle,
    SnapshotKind,
    write_manifest,
)
from keyscale.state.engine.engine import Mutation
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.inspection.summary import (
    KeyGroupSummary,
    OperatorSummary,
    StateSummary,
    SubtaskSummary,
    summarize,
)
from keyscale.state.inspection.verification import PROBLEMS_SHOWN_MAX, Verification, verify
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.schema import schema_of_key
from keyscale.state.keys.hashing import HashId
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


def file(name: str) -> FileHandle:
    """A file whose content is its name."""
    return FileHandle(name, f"job/{name}", len(name), hashlib.sha256(name.encode()).hexdigest(), shared=True)


def snapshot(index: int, *files: FileHandle) -> SnapshotHandle:
    start = 4 * index
    shards = (ShardHandle(start, start + 1, files), ShardHandle(start + 2, start + 3, files[:1]))
    return SnapshotHandle(SubtaskIndex(index), start, start + 3, BatchId(0), "", shards)


def manifest(*subtasks: SnapshotHandle, **changes: Any) -> Manifest:
    operator = OperatorSnapshot(OperatorUid("count"), len(subtasks), OperatorDeclaration(), subtasks)
    plain = Manifest(
        JobId("job"),
        CheckpointId(1),
        SnapshotKind.CHECKPOINT,
        Attempt(2),
        BatchId(3),
        4,
        8,
        HashId.SPARK,
        created_at_ms=5,
        operators=(operator,),
    )
    return msgspec.structs.replace(plain, **changes)


def verified(store: LocalObjectStore, made: Manifest, *, hashes: bool = True) -> Verification:
    return verify(store, made.path, hashes=hashes, goes_on=lambda _: True)


@pytest.mark.parametrize("hashes", [True, False])
def test_a_file_that_several_subtasks_read_is_verified_once(store: LocalObjectStore, *, hashes: bool) -> None:
    made = manifest(snapshot(0, file("both"), file("one")), snapshot(1, file("both"), file("two")))
    for name in ("both", "one", "two"):
        store.put(f"job/{name}", name.encode())
    write_manifest(store, made)
    assert verified(store, made, hashes=hashes) == Verification(3, 3, 10 if hashes else 0, [], 0, made)


def test_each_problem_of_a_file_is_named_and_only_a_hash_shows_another_content(store: LocalObjectStore) -> None:
    made = manifest(snapshot(0, file("gone"), file("short"), file("other"), file("sound")))
    for name, content in (("short", b"shor"), ("other", b"0ther"), ("sound", b"sound")):
        store.put(f"job/{name}", content)
    write_manifest(store, made)
    found = verified(store, made, hashes=False)
    assert (found.files, found.files_checked, found.problem_count) == (4, 4, 2)
    assert found.problems == ["job/gone is missing", "job/short has 4 bytes, not 5"]
    found = verified(store, made)
    assert (found.files, found.files_checked, found.problem_count) == (4, 4, 3)
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "job/gone is missing",
        "job/short",
        "job/other",
    ]
    assert found.bytes_read == 4 + 5 + 5


def test_all_problems_are_counted_and_the_first_are_shown(store: LocalObjectStore) -> None:
    made = manifest(snapshot(0, *(file(f"gone-{number:03}") for number in range(PROBLEMS_SHOWN_MAX + 5))))
    write_manifest(store, made)
    found = verified(store, made)
    assert found.problem_count == PROBLEMS_SHOWN_MAX + 5
    assert found.problems == [f"job/gone-{number:03} is missing" for number in range(PROBLEMS_SHOWN_MAX)]


def test_a_manifest_that_is_gone_or_unreadable_is_the_only_problem(store: LocalObjectStore) -> None:
    made = manifest()
    assert verified(store, made) == Verification(problems=["job/chk-1/manifest.json is missing"], problem_count=1)
    write_manifest(store, made)
    written = store.get(made.path)
    for content in (b"{}", written.replace(b'"format_version":1', b'"format_version":2')):
        store.put(made.path, content)
        found = verified(store, made)
        assert (found.files, found.manifest, found.problem_count) == (None, None, 1)
        assert found.problems[0].startswith("job/chk-1/manifest.json cannot be read: ")


def test_a_verification_ends_where_its_caller_ends_it(store: LocalObjectStore) -> None:
    made = manifest(snapshot(0, file("one"), file("two"), file("three")))
    for name in ("one", "two", "three"):
        store.put(f"job/{name}", name.encode())
    write_manifest(store, made)
    ended = verify(store, made.path, hashes=True, goes_on=lambda found: found.bytes_read < 6)
    assert (ended.files, ended.files_checked, ended.bytes_read, ended.problem_count) == (3, 1, 6, 0)


def test_a_summary_counts_entries_by_state_and_key_group_and_shared_files_once() -> None:
    schema = (
        schema_of_key(pa.schema([("id", pa.int64())]))
        .with_state(ValueStateDescriptor("a", pa.int64()).stored())
        .with_state(ValueStateDescriptor("empty", pa.int64()).stored())
    )
    engines = [HeapEngine(), HeapEngine()]
    engines[0].write([Mutation("a", b"\0\1k", b"12"), Mutation("a", b"\0\2k", b"1"), Mutation("t", b"\0\2", b"12345")])
    engines[1].write([Mutation("a", bytes([0, group, 0]), b"1" * group) for group in range(4, 8)])
    made = manifest(snapshot(0, file("both"), file("one")), snapshot(1, file("both")), savepoint_id="s")
    reader: Any = SimpleNamespace(
        manifest=made,
        schema=lambda _: schema,
        subtasks=lambda _: (SimpleNamespace(engine=engine) for engine in engines),
    )
    found = summarize(reader)
    assert (found.job_id, found.savepoint_id, found.attempt, found.batch_id, found.created_at_ms) == (
        "job",
        "s",
        2,
        3,
        5,
    )
    assert (found.max_parallelism, found.hash_id, found.state_size_bytes) == (8, "spark", 7)
    assert found.operators == (
        OperatorSummary(
            uid="count",
            parallelism=2,
            key=(("id", "int64"),),
            states=(
                StateSummary("a", schema.state("a"), 6, 5 + 4 + (3 + 4) + (3 + 5) + (3 + 6) + (3 + 7)),
                StateSummary("empty", schema.state("empty"), 0, 0),
                StateSummary("t", None, 1, 7),
            ),
            subtasks=(SubtaskSummary(0, 0, 3, 2, 2, 7), SubtaskSummary(1, 4, 7, 2, 1, 4)),
            key_groups_with_state=6,
            largest_key_groups=(
                KeyGroupSummary(2, 2, 11),
                KeyGroupSummary(7, 1, 10),
                KeyGroupSummary(6, 1, 9),
                KeyGroupSummary(5, 1, 8),
                KeyGroupSummary(4, 1, 7),
            ),
        ),
    )
