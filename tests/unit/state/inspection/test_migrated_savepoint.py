"""The savepoint that a migration of maps writes: all of its source but the migrated state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import Manifest, SnapshotKind, read_manifest, write_manifest
from keyscale.state.documents.source_positions import SourcePositions, read_positions, write_positions
from keyscale.state.inspection import map_migration
from keyscale.state.inspection.checkpoint_reader import CheckpointReader
from keyscale.state.inspection.map_migration import MapMigration, MigrationRefusedError, migrate_map, plan_map_state
from keyscale.state.inspection.state_point import UnknownStateError
from keyscale.state.keyed.batch_clock import TimeDomain
from keyscale.state.keyed.descriptors import MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.formats import ValueFormats
from keyscale.state.keyed.schema import KeyedSchema, StateSchema, schema_of_key
from keyscale.state.keyed.stamp import STAMP_MIN_MS
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.layout import Layout
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.serializers.key_codecs import key_codec_for
from keyscale.state.serializers.key_columns import EncodedColumn
from keyscale.state.writing.new_savepoint import NewSavepoint, operator_snapshot
from keyscale.state.writing.row_encoder import KeyHashing, StoredEntries
from keyscale.state.writing.subtask_writer import NewSubtask, SubtaskWriter

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.documents.manifest import OperatorSnapshot

JOB, UID, OTHER = JobId("job"), OperatorUid("count"), OperatorUid("other")
HASHING, OWN = KeyHashing(8), KeyGroupRange(0, 7)
WHOLE = pa.map_(pa.string(), pa.int64())
STATE = ValueStateDescriptor("visits", WHOLE, Ttl(1_000), namespace_type=pa.int64()).stored()
KEPT = ValueStateDescriptor("kept", pa.int64()).stored()
SCHEMA = schema_of_key(pa.schema([("id", pa.int64())])).with_state(STATE).with_state(KEPT)
MAPS = {b"\0\1a": {"x": 1, "y": None}, b"\0\2b": {}, b"\0\3c": {"x": 3, "y": 4, "z": 5}}
AT_MS = 1_700_000_000_000


def operator(savepoint: NewSavepoint, uid: str, scratch: Path) -> OperatorSnapshot:
    formats = ValueFormats(STATE, 0)
    states = {
        "visits": {key: formats.pack(value, AT_MS) for key, value in MAPS.items()},
        "kept": dict.fromkeys(MAPS, b"\x00kept"),
    }
    with SubtaskWriter(NewSubtask(savepoint, uid, SCHEMA, 0, OWN), scratch) as writer:
        for name, entries in states.items():
            writer.add(name, StoredEntries(EncodedColumn.of([*entries]), EncodedColumn.of([*entries.values()])))
        return operator_snapshot(uid, SCHEMA, [writer.finish()])


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    """A checkpoint with two operators, and everything else that a manifest can have."""
    store = LocalObjectStore(tmp_path / "store")
    savepoint = NewSavepoint(store.url, JOB, "source", HASHING, CheckpointId(7), BatchId(9), Attempt(3))
    positions = SourcePositions(("files",), "q", ())
    made = Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(7),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(3),
        batch_id=BatchId(9),
        log_position=20,
        max_parallelism=8,
        hash_id=HASHING.hash_id,
        created_at_ms=5_000_000_000_000,
        operators=tuple(operator(savepoint, uid, tmp_path) for uid in (UID, OTHER)),
        positions=write_positions(
            store, Layout(JOB), positions, checkpoint_id=CheckpointId(7), savepoint_id=None, unique="u"
        ),
        sinks={"out": "token"},
        time=JobTime({UID: EventTime(5, 4)}, 1, 2),
        counters=JobCounters(input_records=7),
    )
    write_manifest(store, made)
    return made


def test_a_migrated_savepoint_has_all_of_its_source_but_the_maps_of_the_migrated_state(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_migration, "_ENTRIES_AT_A_TIME", 2)
    monkeypatch.setattr(map_migration, "_KEYS_AT_A_TIME", 2)
    store = LocalObjectStore(tmp_path / "store")
    reader = CheckpointReader(store, source, tmp_path)
    done = migrate_map(reader, MapMigration(UID, "visits", "by_page", "migrated"))
    assert (done.keys, done.entries) == (3, 5)
    changed = {"savepoint_id": "migrated", "kind": SnapshotKind.SAVEPOINT, "created_at_ms": source.created_at_ms + 1}
    parts = {"operators": (), "positions": None}
    assert msgspec.structs.replace(done.manifest, **parts) == msgspec.structs.replace(source, **parts, **changed)
    assert read_manifest(store, done.manifest.path) == done.manifest
    assert done.manifest.positions is not None
    assert read_positions(store, done.manifest.positions) == SourcePositions(("files",), "q", ())
    assert all(file.path.startswith("job/savepoints/migrated/") for file in done.manifest.files())
    by_page = msgspec.structs.replace(
        MapStateDescriptor("by_page", pa.string(), pa.int64(), Ttl(1_000)).stored(), namespace=STATE.namespace
    )
    fresh = KeyedSchema(SCHEMA.key).with_state(by_page).with_state(KEPT)
    migrated, other = done.manifest.operators
    assert (migrated.declaration.schema, migrated.subtasks[0].schema) == (fresh, fresh)
    assert msgspec.structs.replace(other, subtasks=()) == msgspec.structs.replace(source.operators[1], subtasks=())
    assert other.subtasks[0].lineage == source.operators[1].subtasks[0].lineage
    formats, encode = ValueFormats(by_page, 0), key_codec_for(pa.string()).encode
    again = CheckpointReader(store, done.manifest, tmp_path)
    subtasks = again.subtasks(migrated)
    scanned = next(subtasks)  # open until the next one is asked for
    assert scanned.schema == fresh
    assert dict(scanned.engine.scan("by_page", b"", None)) == {
        key + encode(name): formats.pack(item, AT_MS) for key, value in MAPS.items() for name, item in value.items()
    }
    assert list(scanned.engine.scan("visits", b"", None)) == []
    assert dict(scanned.engine.scan("kept", b"", None)) == dict.fromkeys(MAPS, b"\x00kept")
    assert next(subtasks, None) is None


def test_names_that_a_snapshot_does_not_have_or_has_already_are_refused(source: Manifest, tmp_path: Path) -> None:
    reader = CheckpointReader(LocalObjectStore(tmp_path / "store"), source, tmp_path)
    for migration, kind, words in (
        (MapMigration("sum", "visits", "by_page", "m"), UnknownStateError, "no operator 'sum'; it has: count, other"),
        (MapMigration(UID, "pages", "by_page", "m"), UnknownStateError, "no state 'pages'; it has: kept, visits"),
        (MapMigration(UID, "kept", "by_page", "m"), MigrationRefusedError, "holds values of type int64, not maps"),
        (MapMigration(UID, "visits", "kept", "m"), MigrationRefusedError, "has a state 'kept' already"),
    ):
        with pytest.raises(kind, match=words):
            migrate_map(reader, migration)
    assert [info.path for info in reader.store.list("job/savepoints/m/")] == []


@pytest.mark.parametrize(
    ("time_domain", "began_ms"), [(None, 1_000), (TimeDomain.PROCESSING, 1_000), (TimeDomain.EVENT, 4)]
)
def test_maps_without_a_time_begin_at_the_time_of_the_snapshot_by_the_clock_of_their_ttl(
    time_domain: TimeDomain | None, began_ms: int
) -> None:
    ttl = None if time_domain is None else Ttl(1_000, time_domain=time_domain)
    state = plan_map_state(None, ValueStateDescriptor("visits", WHOLE, ttl).stored(), "by_page")
    manifest = Manifest(
        JOB, CheckpointId(1), SnapshotKind.SAVEPOINT, Attempt(1), BatchId(0), 0, 8, HASHING.hash_id, 1_000, ()
    )
    timed = msgspec.structs.replace(manifest, time=JobTime({UID: EventTime(5, 4)}))
    assert map_migration._time_ms(timed, UID, state) == began_ms
    if time_domain is TimeDomain.EVENT:
        assert map_migration._time_ms(timed, OTHER, state) == STAMP_MIN_MS
        assert map_migration._time_ms(manifest, UID, state) == STAMP_MIN_MS


def test_a_map_state_takes_over_types_namespace_and_clock_of_the_value_state() -> None:
    by_events = ValueStateDescriptor("visits", WHOLE, Ttl(1, time_domain=TimeDomain.EVENT), namespace_type=pa.int64())
    found: StateSchema = plan_map_state(SCHEMA, by_events.stored(), "by_page")
    assert (found.name, found.map_key, found.namespace) == ("by_page", "string", "int64")
    assert [(each.type, each.stamps) for each in found.formats] == [("int64", "event")]
