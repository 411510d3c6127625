"""The state of keys is set or deleted in a copy of a snapshot, and all other state stays as it is."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale.identifiers import OperatorUid
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import read_manifest, write_manifest
from keyscale.state.inspection.state_point import StatePoint, UnknownStateError
from keyscale.state.keyed.batch_clock import TimeDomain
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.key_groups import assign_to_key_group
from keyscale.state.layout import location_of, split_location
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.opening import open_store
from keyscale.state.writing.new_savepoint import SavepointExistsError
from keyscale.state_io import (
    EVENT_TIMERS,
    KeyChange,
    NewOperator,
    NewState,
    NewTimers,
    StateReader,
    answer_limit,
    change_keys,
    write,
)
from keyscale.state_io.answer_limit import StateAnswerTooLargeError
from keyscale.state_io.difference import differences
from keyscale.state_io.json_value import ValueJsonError, value_of_json
from keyscale.state_io.key_change import KeyChangeError, change_of_job, change_point, first_answer
from keyscale.state_io.key_state import KeyReadTooLargeError
from keyscale.state_io.key_text import KeyTextError
from keyscale.state_io.row_files import plain_value
from keyscale.state_io.verified_state import verify_state
from tests.support.state.every_kind import VALUES
from tests.support.state.state_job import StateJob, random_batch

if TYPE_CHECKING:
    from pathlib import Path

USERS = ["ada", "bob", "eve"]
EVENT_TTL = Ttl(1000, time_domain=TimeDomain.EVENT)
STATES = [
    NewState(ValueStateDescriptor("clicks", pa.int64()), pa.table({"user": USERS, "value": [1, 2, 3]})),
    NewState(
        MapStateDescriptor("pages", pa.string(), pa.int64(), Ttl(1000)),
        pa.table({"user": USERS, "value": pa.array([[("/", 1), ("/docs", 2)]] * 3, pa.map_("string", "int64"))}),
    ),
    NewState(ListStateDescriptor("marks", pa.float64()), pa.table({"user": USERS, "value": [[0.5, 1.5]] * 3})),
    NewState(
        ValueStateDescriptor("in_window", pa.int64(), EVENT_TTL, pa.int64()),
        pa.table(
            {
                "user": ["ada", "ada"],
                "namespace": [10, 20],
                "value": [1, 2],
                "ttl_started_at": pa.array([0, 0], pa.timestamp("ms", "UTC")),
            }
        ),
    ),
    NewTimers(EVENT_TIMERS, pa.table({"user": ["ada", "ada", "bob"], "time_ms": [100, 200, 100]})),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('changed')}/store/job/savepoints"


@pytest.fixture(scope="module")
def source(store: str) -> str:
    operators = [NewOperator("counts", {"user": pa.string()}, STATES), NewOperator("others", {"id": pa.int64()})]
    return write(f"{store}/source", operators, max_parallelism=16, parallelism=2)


@pytest.fixture
def target(store: str) -> str:
    return f"{store}/{uuid.uuid4().hex}"


def rows(location: str, state: str, key: str = "ada") -> list[dict[str, Any]]:
    with StateReader.open(location) as reader:
        table = reader.table("counts", state)
        found = [row for batch in table.batches(key=(key,)) for row in batch.to_pylist()]  # type: ignore[call-arg]
    hidden = {"key", "key_group", "ttl_started_at"}
    return [{name: value for name, value in row.items() if name not in hidden} for row in found]


@pytest.mark.parametrize(
    ("change", "expected", "changes"),
    [
        pytest.param(*({"state": "clicks", "value": 9}, [{"value": 9}], {"changed": 1}), marks=pytest.mark.exhaustive),
        ({"state": "clicks", "key": "new", "value": 9}, [{"value": 9}], {"added": 1}),
        pytest.param(*({"state": "clicks", "deletes": True}, [], {"removed": 1}), marks=pytest.mark.exhaustive),
        (
            {"state": "pages", "value": {"/docs": 7, "/new": None}},
            [{"map_key": "/docs", "value": 7}, {"map_key": "/new", "value": None}],
            {"added": 1, "removed": 1, "changed": 1},
        ),
        (
            {"state": "pages", "map_key": "/", "value": 5},
            [{"map_key": "/", "value": 5}, {"map_key": "/docs", "value": 2}],
            {"changed": 1},
        ),
        pytest.param(
            *({"state": "pages", "map_key": "/", "deletes": True}, [{"map_key": "/docs", "value": 2}], {"removed": 1}),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(*({"state": "pages", "deletes": True}, [], {"removed": 2}), marks=pytest.mark.exhaustive),
        ({"state": "marks", "value": [2.5]}, [{"list_index": 0, "value": 2.5}], {"removed": 1, "changed": 1}),
        (
            {"state": "in_window", "namespace": 20, "value": 8},
            [{"namespace": 10, "value": 1}, {"namespace": 20, "value": 8}],
            {"changed": 1},
        ),
        ({"state": "in_window", "deletes": True}, [], {"removed": 2}),
        ({"state": EVENT_TIMERS, "time_ms": 100, "deletes": True}, [{"time_ms": 200}], {"removed": 1}),
        pytest.param(
            *({"state": EVENT_TIMERS, "time_ms": 150}, [{"time_ms": at} for at in (100, 150, 200)], {"added": 1}),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_one_key_changes_and_nothing_else(
    source: str, target: str, change: dict[str, Any], expected: list[dict[str, Any]], changes: dict[str, int]
) -> None:
    wanted = KeyChange(**{"operator": "counts", "key": "ada", **change})
    changed = change_keys(source, target, [wanted])
    assert verify_state(changed.location).problems == []
    assert rows(changed.location, wanted.state, wanted.key) == expected
    with StateReader.open(source, shards_open=4) as before, StateReader.open(changed.location, shards_open=4) as after:
        found = dict.fromkeys(("added", "removed", "changed"), 0)
        for difference in differences(before, after):
            for each in difference.changes():
                assert (difference.state, each.row["key"]) == (wanted.state, {"user": wanted.key})
                found[each.kind] += 1
    assert {kind: count for kind, count in found.items() if count} == changes
    (effect,) = changed.changes
    assert effect.key == {"user": wanted.key}
    assert len(effect.after) - len(effect.before) == changes.get("added", 0) - changes.get("removed", 0)


@pytest.mark.parametrize(
    ("change", "refusal", "complaint"),
    [
        ({"operator": "gone"}, UnknownStateError, "counts, others"),
        ({"state": "gone"}, UnknownStateError, "no keyed state 'gone'; it has: _event_timers, clicks"),
        ({"value": "text"}, ValueJsonError, "int64"),
        ({"value": None}, KeyChangeError, "'clicks' has no value to set"),
        ({"state": "pages", "value": None}, KeyChangeError, "'pages' has no value to set"),
        ({"state": "marks", "value": None}, KeyChangeError, "'marks' has no value to set"),
        ({"deletes": True}, KeyChangeError, "a deletion has no value"),
        ({"map_key": "/"}, KeyChangeError, "without map_key"),
        ({"namespace": 1}, KeyChangeError, "without namespace"),
        ({"state": "in_window", "value": 1}, KeyChangeError, "has namespaces"),
        ({"state": EVENT_TIMERS}, KeyChangeError, "with a time"),
        ({"operator": "others", "state": "clicks", "key": "x"}, UnknownStateError, "it has: none"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    source: str, target: str, change: dict[str, Any], refusal: type[Exception], complaint: str
) -> None:
    wanted = KeyChange(**{"operator": "counts", "state": "clicks", "key": "ada", "value": 1, **change})
    with pytest.raises(refusal, match=complaint):
        change_keys(source, target, [wanted])


def test_several_keys_change_in_one_savepoint_and_in_order(source: str, target: str) -> None:
    changes = [
        KeyChange("counts", "clicks", "ada", 9),
        KeyChange("counts", "pages", "eve", deletes=True),
        KeyChange("counts", "clicks", "bob", deletes=True),
        KeyChange("counts", "clicks", "ada", 10),
    ]
    changed = change_keys(source, target, changes)
    assert verify_state(changed.location).problems == []
    assert [rows(changed.location, "clicks", key) for key in USERS] == [[{"value": 10}], [], [{"value": 3}]]
    assert (rows(changed.location, "pages", "eve"), len(rows(changed.location, "pages", "bob"))) == ([], 2)
    assert [(each.key["user"], len(each.before), len(each.after)) for each in changed.changes] == [
        ("ada", 1, 1),
        ("eve", 2, 0),
        ("bob", 1, 0),
        ("ada", 1, 1),
    ]
    assert changed.changes[3].before == [{"value": 9}]


def test_one_change_that_does_not_fit_refuses_all_and_is_named(source: str, target: str) -> None:
    changes = [KeyChange("counts", "clicks", "ada", 9), KeyChange("counts", "clicks", "bob", "text")]
    with pytest.raises(ValueJsonError, match=r"^change 2: .*int64"):
        change_keys(source, target, changes)
    change_keys(source, target, changes[:1])


UUID = uuid.UUID(int=0xAB)


@pytest.mark.parametrize(
    ("of_type", "stored", "named"),
    [
        (pa.uuid(), [UUID.bytes, bytes(16)], str(UUID).upper()),
        pytest.param(pa.float64(), [math.nan, 1.0], "NaN", marks=pytest.mark.exhaustive),
        pytest.param(pa.float64(), [0.0, 1.0], -0.0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_map_key_or_a_namespace_is_named_as_it_is_shown(
    tmp_path: Path, of_type: pa.DataType, stored: list[Any], named: Any
) -> None:
    table = pa.table({"user": ["ada", "ada"], "value": [1, 2], "part": pa.array(stored, of_type)})
    entries = NewState(
        MapStateDescriptor("map", of_type, pa.int64()), table.rename_columns(["user", "value", "map_key"])
    )
    scoped = NewState(
        ValueStateDescriptor("scoped", pa.int64(), namespace_type=of_type),
        table.rename_columns(["user", "value", "namespace"]),
    )
    store = f"file://{tmp_path}/store/job/savepoints"
    source = write(f"{store}/source", [NewOperator("counts", {"user": pa.string()}, [entries, scoped])])
    deletion = KeyChange("counts", "map", "ada", map_key=named, deletes=True)
    for change, left in ((deletion, [2]), (KeyChange("counts", "scoped", "ada", 3, namespace=named), [2, 3])):
        changed = change_keys(source, f"{store}/{uuid.uuid4().hex}", [change])
        assert [row["value"] for row in changed.changes[0].before] == [1]
        assert sorted(row["value"] for row in rows(changed.location, change.state)) == left


def test_two_spellings_of_a_map_key_are_refused(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store/job/savepoints"
    floats = NewState(
        MapStateDescriptor("map", pa.float64(), pa.int64()), pa.table({"user": ["a"], "map_key": [1.0], "value": [1]})
    )
    source = write(f"{store}/source", [NewOperator("counts", {"user": pa.string()}, [floats])])
    with pytest.raises(KeyChangeError, match="two entries of the same map key"):
        change_keys(source, f"{store}/twice", [KeyChange("counts", "map", "a", value={"1": 1, "1.0": 2})])


def test_no_savepoint_is_published_whose_answer_is_too_large(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    savepoint_id = uuid.uuid4().hex
    root, manifest_path = split_location(source)
    request: dict[str, Any] = {
        "store_url": root,
        "job_id": "job",
        "savepoint_id": savepoint_id,
        "checkpoint_id": 2,
        "manifest_path": manifest_path,
        "fetched_bytes_max": 1 << 30,
        "changes": [{"operator": "counts", "state": "clicks", "key": "ada", "value": 5}],
        "derived_from": None,
    }
    monkeypatch.setattr(answer_limit, "ANSWER_BYTES_MAX", 16 << 10)
    with pytest.raises(StateAnswerTooLargeError):
        change_of_job(**request)
    assert list(open_store(root).list(f"job/savepoints/{savepoint_id}/")) == []
    monkeypatch.undo()
    assert change_of_job(**request)["changes"][0]["after"] == [{"value": 5}]


def test_a_jobs_change_is_answered_again_to_an_equal_request_alone(source: str) -> None:
    root, manifest_path = split_location(source)
    savepoint_id = uuid.uuid4().hex
    change = {"operator": "counts", "state": "clicks", "key": "ada", "value": 5}
    asked: dict[str, Any] = {
        "store_url": root,
        "job_id": "job",
        "savepoint_id": savepoint_id,
        "changes": [change],
        "derived_from": 3,
    }
    facts: dict[str, Any] = {"checkpoint_id": 7, "manifest_path": manifest_path, "fetched_bytes_max": 1 << 30}
    assert first_answer(**asked) is None
    answer = change_of_job(**asked, **facts)
    manifest = read_manifest(open_store(root), f"job/savepoints/{savepoint_id}/manifest.json")
    assert manifest.checkpoint_id == 7
    assert answer == {
        "location": location_of(root, manifest.path),
        "checkpoint_id": 7,
        "changes": [{"key": {"user": "ada"}, "before": [{"value": 1}], "after": [{"value": 5}]}],
        "batch_id": manifest.batch_id,
        "created_at_ms": manifest.created_at_ms,
        "state_size_bytes": manifest.state_size_bytes,
    }
    assert first_answer(**asked) == change_of_job(**asked, **facts) == answer
    others: list[dict[str, Any]] = [
        {"derived_from": None},
        {"changes": [{**change, "value": 5.0}]},
        {"changes": [change, change]},
        {"savepoint_id": "other"},
        {"job_id": "other"},
    ]
    assert [first_answer(**{**asked, **other}) for other in others] == [None] * len(others)
    with pytest.raises(SavepointExistsError):
        change_of_job(**asked, **{**facts, "checkpoint_id": 8})


def test_the_subtasks_of_the_keys_count_once_each_against_the_bytes_of_a_change(source: str, store: str) -> None:
    point = StatePoint.of_location(source)
    assert point.manifest is not None
    sizes = [each.state_size_bytes for each in point.manifest.operators[0].subtasks]
    owner = {user: int(assign_to_key_group((user,), 16) > 7) for user in (f"user {number}" for number in range(9))}
    here, there = ([user for user in owner if owner[user] == subtask][:2] for subtask in (0, 1))
    for users, size in ((here, sizes[0]), (there, sizes[1]), (here + there, sum(sizes))):
        changes = [KeyChange("counts", "clicks", user, 1) for user in users]
        with pytest.raises(KeyReadTooLargeError, match=f"take {size:,} bytes, and a change may fetch {size - 1:,}"):
            change_point(point, f"{store}/{uuid.uuid4().hex}", changes, fetched_bytes_max=size - 1)
        change_point(point, f"{store}/{uuid.uuid4().hex}", changes, fetched_bytes_max=size)


def test_a_changed_entry_lives_from_the_time_of_the_snapshot(source: str, store: str) -> None:
    root, path = split_location(source)
    objects = open_store(root)
    time = JobTime(
        {OperatorUid("counts"): EventTime(9_000, 7_000), OperatorUid("others"): EventTime(9_000, 8_000)}, 1, 6_000
    )
    timed = msgspec.structs.replace(read_manifest(objects, path), savepoint_id="timed", time=time, created_at_ms=5_000)
    write_manifest(objects, timed)
    changes = [
        KeyChange("counts", "pages", "ada", 4, map_key="/"),
        KeyChange("counts", "in_window", "ada", 4, namespace=20),
    ]
    changed = change_keys(location_of(root, timed.path), f"{store}/{uuid.uuid4().hex}", changes)
    began = [row["ttl_started_at"] for each in changed.changes for row in each.after]
    assert began == ["1970-01-01T00:00:05+00:00", "1970-01-01T00:00:07+00:00"]


def test_a_change_of_another_jobs_state_stays_a_change_of_another_jobs_state(store: str, source: str) -> None:
    mine = store.replace("/job/", "/mine/")
    wanted = KeyChange("counts", "clicks", "ada", value=5)
    first = change_keys(source, f"{mine}/{uuid.uuid4().hex}", [wanted])
    second = change_keys(first.location, f"{mine}/{uuid.uuid4().hex}", [wanted])
    assert second.manifest.forked_from == first.manifest.forked_from == "job"


def test_the_key_is_of_the_types_of_the_key(tmp_path: Path) -> None:
    location = f"file://{tmp_path}/store/job/savepoints"
    counts = NewState(ValueStateDescriptor("clicks", pa.int64()), pa.table({"id": [1], "value": [1]}))
    source = write(f"{location}/source", [NewOperator("counts", {"id": pa.int64()}, [counts])])
    with pytest.raises(KeyTextError):
        change_keys(source, f"{location}/changed", [KeyChange("counts", "clicks", "ada", 1)])


def test_only_the_files_of_the_key_s_subtask_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(3)
    job.run_batch(random_batch(1))
    taken = location_of(job.store.url, job.checkpoint()[0].path)
    fetched: list[str] = []
    real = LocalObjectStore.download

    def noted(self: LocalObjectStore, path: str, *given: Any, **named: Any) -> None:
        fetched.append(path)
        real(self, path, *given, **named)

    monkeypatch.setattr(LocalObjectStore, "download", noted)
    key = next(iter(job.reference))
    changed = change_keys(taken, f"{job.store.url}/job/savepoints/x", [KeyChange("count", "count", str(key), 10**6)])
    assert 0 < len(fetched) < len({file.path for file in changed.manifest.files()})
    job.start(2, "job/savepoints/x/manifest.json", rewinds=True)
    job.reference[key] = 10**6
    assert job.dump() == job.reference


@pytest.mark.parametrize(
    ("value", "of_type"),
    [
        (2**53 + 1, pa.float64()),
        ("9007199254740993", pa.float64()),
        (2**24 + 1, pa.float32()),
        (1e39, pa.float32()),
        ("1e400", pa.float64()),
        (math.inf, pa.float64()),
        ([2**53 + 1], pa.list_(pa.float64())),
    ],
    ids=str,
)
def test_a_json_value_that_the_type_cannot_hold_exactly_is_refused(value: Any, of_type: pa.DataType) -> None:
    with pytest.raises(ValueJsonError):
        value_of_json(value, of_type)


@pytest.mark.parametrize("of_type", [of_type for of_type, _ in VALUES.values()], ids=str)
def test_json_values_are_read_as_they_are_shown(of_type: pa.DataType) -> None:
    for each, value in VALUES.values():
        if each == of_type:
            assert pa.array([value_of_json(plain_value(value), of_type)], of_type) == pa.array([value], of_type)
    with pytest.raises(ValueJsonError):
        value_of_json({"no": ["such", "value"]} if not pa.types.is_string(of_type) else 1, of_type)
