"""A new savepoint's manifest: what it takes over from its base, and what it never takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import UNSET

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import (
    FileHandle,
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    ShardHandle,
    SnapshotHandle,
    SnapshotKind,
    read_manifest,
)
from keyscale.state.documents.rewind import Rewind
from keyscale.state.documents.source_positions import SourcePositions, read_positions, write_positions
from keyscale.state.keyed.schema import KeyedSchema, StateKind, StateSchema
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout, LocationError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.writing import new_savepoint
from keyscale.state.writing.new_savepoint import NewSavepoint, operator_snapshot
from keyscale.state.writing.row_encoder import KeyHashing

if TYPE_CHECKING:
    from pathlib import Path

JOB, OTHER = JobId("job"), JobId("other")
OLD, NEW, GONE = OperatorUid("old"), OperatorUid("new"), OperatorUid("gone")
NOW_MS, BASE_MS = 1_700_000_000_000, 1_600_000_000_000
HASHING = KeyHashing(64, HashId.SPARK)
POSITIONS = SourcePositions(("files",), "a query", ())
COUNTERS, REWINDS = JobCounters(input_records=7), (Rewind(Attempt(2), BatchId(4)),)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalObjectStore:
    monkeypatch.setattr(new_savepoint, "now_ms", lambda: NOW_MS)
    return LocalObjectStore(tmp_path / "store")


def operator(store: LocalObjectStore, savepoint: NewSavepoint, uid: str) -> OperatorSnapshot:
    path = savepoint.layout.savepoint_file(savepoint.savepoint_id, f"{uid}-sha", Attempt(0), savepoint.checkpoint_id)
    store.put(path, b"state")
    shard = ShardHandle(0, 63, (FileHandle("1.sst", path, 5, f"{uid}-sha", shared=True),))
    return operator_snapshot(uid, None, [SnapshotHandle(SubtaskIndex(0), 0, 63, BatchId(9), "lineage", (shard,))])


def base(store: LocalObjectStore, **changed: Any) -> Manifest:
    """A checkpoint of the job with everything that a manifest can have."""
    positions = write_positions(
        store, Layout(JOB), POSITIONS, checkpoint_id=CheckpointId(5), savepoint_id=None, unique="u"
    )
    made = Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(5),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(3),
        batch_id=BatchId(9),
        log_position=20,
        max_parallelism=64,
        hash_id=HashId.SPARK,
        created_at_ms=BASE_MS,
        operators=(),
        positions=positions,
        sinks={"out": "token"},
        time=JobTime({OLD: EventTime(5, 4), GONE: EventTime(3, 2)}, 2, 1_000),
        forked_from=JobId("ancestor"),
        counters=COUNTERS,
        rewinds=REWINDS,
    )
    return msgspec.structs.replace(made, **changed)


@pytest.mark.parametrize("owner", [JOB, OTHER])
def test_a_derived_savepoint_takes_over_positions_and_times_and_facts_of_its_own_job_alone(
    store: LocalObjectStore, owner: JobId
) -> None:
    earlier = base(store, job_id=owner)
    assert earlier.positions is not None
    at = f"{store.url}/{JOB}/savepoints/derived"
    savepoint = NewSavepoint.at(at, HASHING, base=earlier, base_store=store.url)
    operators = [operator(store, savepoint, uid) for uid in (NEW, "another")]
    published = savepoint.publish(operators, base=earlier, renamed={OLD: NEW})
    is_own = owner == JOB
    copied = Layout(JOB).savepoint_file("derived", earlier.positions.sha256, Attempt(0), CheckpointId(5))
    assert published == Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(5),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(3) if is_own else Attempt(0),
        batch_id=BatchId(9),
        log_position=0,
        max_parallelism=64,
        hash_id=HashId.SPARK,
        created_at_ms=NOW_MS,
        operators=(operators[1], operators[0]),
        positions=msgspec.structs.replace(earlier.positions, path=copied),
        sinks={"out": "token"} if is_own else {},
        savepoint_id="derived",
        time=JobTime({NEW: EventTime(5, 4)}, 2, 1_000),
        forked_from=JobId("ancestor") if is_own else OTHER,
        counters=COUNTERS if is_own else UNSET,
        rewinds=REWINDS if is_own else UNSET,
    )
    assert read_manifest(store, savepoint.path) == published
    store.delete([earlier.positions.path])
    assert published.positions is not None
    assert read_positions(store, published.positions) == POSITIONS, "the base may be deleted"


def test_a_savepoint_without_a_base_has_the_given_positions_and_time_and_no_history(store: LocalObjectStore) -> None:
    savepoint = NewSavepoint.at(f"{store.url}/{JOB}/savepoints/first", HASHING)
    time = JobTime({NEW: EventTime(1, 0)}, 0, 5)
    written = operator(store, savepoint, NEW)
    published = savepoint.publish([written], positions=POSITIONS, time=time)
    assert published.positions is not None
    assert published.positions.path.startswith(savepoint.layout.savepoint("first"))
    assert read_positions(store, published.positions) == POSITIONS
    assert msgspec.structs.replace(published, positions=None) == Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(1),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(0),
        batch_id=BatchId(-1),
        log_position=0,
        max_parallelism=64,
        hash_id=HashId.SPARK,
        created_at_ms=NOW_MS,
        operators=(written,),
        savepoint_id="first",
        time=time,
    )
    assert savepoint.location == f"{store.url}/{JOB}/savepoints/first/manifest.json"


def test_a_derived_savepoint_is_newer_than_a_base_from_a_host_whose_clock_is_ahead(store: LocalObjectStore) -> None:
    earlier = base(store, created_at_ms=NOW_MS + 50, positions=None, time=UNSET)
    savepoint = NewSavepoint.at(f"{store.url}/{JOB}/savepoints/derived", HASHING, base=earlier)
    published = savepoint.publish([], base=earlier)
    assert (published.created_at_ms, published.positions, published.time) == (NOW_MS + 51, None, UNSET)


def test_a_derived_savepoint_stays_in_the_store_of_its_base(store: LocalObjectStore, tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="is in its store, file:///elsewhere"):
        NewSavepoint.at(
            f"file://{tmp_path}/store/job/savepoints/x", HASHING, base=base(store), base_store="file:///elsewhere"
        )


def test_a_written_operator_declares_its_key_and_its_states() -> None:
    schema = KeyedSchema((("user", "string"), ("day", "date")), (StateSchema("clicks", StateKind.VALUE, ()),))
    subtasks = [SnapshotHandle(SubtaskIndex(index), index, index, BatchId(0), "l", ()) for index in range(2)]
    assert operator_snapshot("counts", schema, subtasks) == OperatorSnapshot(
        OperatorUid("counts"),
        2,
        OperatorDeclaration((("user", "string"), ("day", "date32[day]")), schema),
        tuple(subtasks),
    )
