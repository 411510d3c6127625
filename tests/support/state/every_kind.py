"""A savepoint with every kind of keyed state and of stored type, and what must be read from it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotKind,
    write_manifest,
)
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_groups import assign_to_key_group, subtask_for_key_group
from keyscale.state.layout import Layout
from keyscale.state.local.subtask_spec import SubtaskSpec
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.snapshot.snapshot import upload_snapshot
from keyscale.state.subtask.store import open_subtask

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.keyed.backend import KeyedStateBackend
    from keyscale.state.objects.object_store import ObjectStore

JOB = JobId("every-kind")
UID = OperatorUid("totals")
SAVEPOINT = "golden"
MAX_PARALLELISM = 8
PARALLELISM = 2
NOW_MS = 1_700_000_000_000
KEY_TYPES = (pa.string(), pa.int32())
KEY_SCHEMA = pa.schema([("name", KEY_TYPES[0]), ("number", KEY_TYPES[1])])
KEYS: tuple[tuple[str | None, int], ...] = (("", 0), ("émile 🛫", -7), (None, 2**31 - 1), ("a\0b", 5))


@dataclass(frozen=True)
class Longest:
    """The longest string, as a user's reduce function: comparable, so that declaring it twice is the same."""

    def __call__(self, left: str, right: str, /) -> str:
        return max(left, right, key=len)


@dataclass(frozen=True)
class Sum:
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int, /) -> int:
        return accumulator + value

    def get_result(self, accumulator: int, /) -> int:
        return accumulator

    def merge(self, left: int, right: int, /) -> int:
        return left + right


VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "v_bool": (pa.bool_(), True),
    "v_int8": (pa.int8(), -128),
    "v_int64": (pa.int64(), 2**63 - 1),
    "v_double": (pa.float64(), -0.5),
    "v_string": (pa.string(), "zwölf"),
    "v_binary": (pa.binary(), b"\x00\xff"),
    "v_date": (pa.date32(), date(2013, 1, 1)),
    "v_timestamp": (pa.timestamp("us", "UTC"), datetime(2013, 1, 1, 5, 15, tzinfo=UTC)),
    "v_decimal": (pa.decimal128(12, 2), Decimal("-1234.50")),
    "v_uuid": (pa.string(), "9f0c2a3e-7b1d-4c57-8a55-0d9e6f1b2c3d"),
    "v_list": (pa.list_(pa.int32()), [1, None, 3]),
    "v_struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": None}),
}
KINDS: dict[str, list[tuple[Any, Any]]] = {
    "map": [("BOS", 2), ("JFK", 1)],
    "list": [(0, 1.5), (1, -2.5)],
    "reducing": [(None, "longer")],
    "aggregating": [(None, 7)],
    "with_ttl": [(None, 3)],
    "in_window": [(None, 9)],
}
NAMESPACE = datetime(2013, 1, 1, tzinfo=UTC)
DESCRIPTORS: tuple[StateDescriptor[Any], ...] = (
    *(ValueStateDescriptor(name, of_type) for name, (of_type, _) in VALUES.items()),
    MapStateDescriptor("map", pa.string(), pa.int64()),
    ListStateDescriptor("list", pa.float64()),
    ReducingStateDescriptor("reducing", pa.string(), Longest()),
    AggregatingStateDescriptor("aggregating", pa.int64(), Sum()),
    ValueStateDescriptor("with_ttl", pa.int64(), Ttl(60_000)),
    ValueStateDescriptor("in_window", pa.int64(), namespace_type=pa.timestamp("ms", "UTC")),
)


def _fill(keyed: KeyedStateBackend) -> None:
    states: dict[str, Any] = {each.name: keyed.state(each) for each in DESCRIPTORS}
    for name, (_, value) in VALUES.items():
        states[name].update(value)
    states["map"].put_all({"JFK": 1, "BOS": 2})
    states["list"].update([1.5, -2.5])
    for text in ("long", "longer"):
        states["reducing"].add(text)
    for number in (3, 4):
        states["aggregating"].add(number)
    states["with_ttl"].update(3)
    states["in_window"].set_current_namespace(NAMESPACE)
    states["in_window"].update(9)


def group_of(key: tuple[str | None, int]) -> int:
    return assign_to_key_group(key, MAX_PARALLELISM, hash_id=HashId.SPARK, types=KEY_TYPES)


def write_savepoint(store: ObjectStore, local_root: Path) -> Manifest:
    """Writes the savepoint as a job would: through batches, local snapshots and a manifest."""
    uploads = []
    for index in range(PARALLELISM):
        spec = SubtaskSpec(
            job_id=JOB,
            operator_uid=UID,
            index=SubtaskIndex(index),
            parallelism=PARALLELISM,
            max_parallelism=MAX_PARALLELISM,
            hash_id=HashId.SPARK,
            key_schema=KEY_SCHEMA,
            attempt=Attempt(1),
        )
        clock = BatchClock(processing_time_ms=NOW_MS)
        with open_subtask(spec, None, RestorePlan(), local_root, store, clock=clock) as subtask:
            for key in KEYS:
                if subtask_for_key_group(group_of(key), MAX_PARALLELISM, PARALLELISM) == index:
                    subtask.keyed.set_current_key(group_of(key), key)
                    _fill(subtask.keyed)
            subtask.finish_batch(BatchId(0), uuid.uuid4().hex)
            local = subtask.snapshot(CheckpointId(1))
        uploads.append(upload_snapshot(local, store, Layout(JOB), {}, SAVEPOINT))
    declaration = OperatorDeclaration((("name", "string"), ("number", "int32")))
    manifest = Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(1),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(1),
        batch_id=BatchId(0),
        log_position=0,
        max_parallelism=MAX_PARALLELISM,
        hash_id=HashId.SPARK,
        created_at_ms=NOW_MS,
        operators=(OperatorSnapshot(UID, PARALLELISM, declaration, tuple(upload.handle for upload in uploads)),),
        savepoint_id=SAVEPOINT,
    )
    write_manifest(store, manifest)
    return manifest
