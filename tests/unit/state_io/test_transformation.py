"""Changed copies of snapshots: what is renamed, dropped, replaced and moved to other key groups, and what stays."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from keyscale.identifiers import OperatorUid
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import read_manifest, write_manifest
from keyscale.state.errors import DescriptorError, StateSchemaMismatchError
from keyscale.state.inspection.state_point import UnknownStateError
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.layout import LocationError, location_of, split_location
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.opening import open_store
from keyscale.state_io import (
    EVENT_TIMERS,
    ChangedOperator,
    NewOperator,
    NewState,
    NewTimers,
    StateReader,
    transform,
    transformation,
    write,
)
from keyscale.state_io.verified_state import verify_state
from tests.support.state.state_job import StateJob, random_batch

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore

KEY = {"user": pa.string()}
MAPS = ValueStateDescriptor("visits", pa.map_(pa.string(), pa.int64()), Ttl(60_000))
USERS = [f"user {number}" for number in range(40)]
CLICKS = pa.table({"user": USERS, "value": list(range(40))})
VISITS = pa.table(
    {"user": USERS, "value": pa.array([[("/", at)] for at in range(40)], pa.map_(pa.string(), pa.int64()))}
)
ALARMS = pa.table({"user": USERS, "time_ms": list(range(0, 4000, 100))})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('transformed')}/store/job/savepoints"


@pytest.fixture
def target(store: str) -> str:
    return f"{store}/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def source(store: str) -> str:
    """A savepoint of two operators; the first one has two states and timers."""
    counts = [
        NewState(ValueStateDescriptor("clicks", pa.int64()), CLICKS),
        NewState(MAPS, VISITS),
        NewTimers(EVENT_TIMERS, ALARMS),
    ]
    others = [NewState(ValueStateDescriptor("clicks", pa.int64()), CLICKS)]
    operators = [NewOperator("counts", KEY, counts), NewOperator("others", KEY, others)]
    return write(f"{store}/source", operators, max_parallelism=16, parallelism=2)


def tables(location: str) -> dict[str, dict[str, Any]]:
    """Returns the values of each state, by user, and checks the whole savepoint."""
    assert verify_state(location).problems == []
    with StateReader.open(location, shards_open=4) as reader:
        return {
            f"{table.operator}.{table.name}": {
                row["key"]["user"]: row.get("value", row.get("time_ms"))
                for row in table.reader().read_all().to_pylist()
            }
            for table in reader.tables()
        }


def test_operators_and_states_are_renamed_and_dropped(target: str, source: str) -> None:
    changed = ChangedOperator(uid="totals", states={"clicks": "views", "visits": None, EVENT_TIMERS: "alarms"})
    found = tables(transform(source, target, {"counts": changed, "others": None}))
    before = tables(source)
    assert found == {"totals.views": before["counts.clicks"], "totals.alarms": before[f"counts.{EVENT_TIMERS}"]}


def test_a_changed_operator_is_declared_as_it_is_written(target: str, source: str) -> None:
    changed = ChangedOperator(states={"clicks": "views", "visits": None})
    with StateReader.open(transform(source, target, {"counts": changed})) as reader:
        manifest = reader.point.manifest
    assert manifest is not None
    [counts] = [each for each in manifest.operators if each.uid == "counts"]
    assert counts.declaration.schema is not None
    assert [each.name for each in counts.declaration.schema.states] == ["views"]
    assert {subtask.schema for subtask in counts.subtasks} == {counts.declaration.schema}


def test_operators_that_only_get_another_uid_are_copied_unread(
    target: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tables(source)
    monkeypatch.setattr(transformation, "write_operator", pytest.fail)
    changed = transform(source, target, {"counts": ChangedOperator(uid="totals")})
    found = tables(changed)
    assert found.pop("others.clicks") == before["others.clicks"]
    assert found == {name.replace("counts.", "totals."): rows for name, rows in before.items() if "counts" in name}


@pytest.mark.parametrize(
    ("max_parallelism", "hash_id"),
    [
        (128, "java"),
        pytest.param(128, "spark", marks=pytest.mark.exhaustive),
        pytest.param(1, "java", marks=pytest.mark.exhaustive),
        pytest.param(16, "java", marks=pytest.mark.exhaustive),
    ],
)
def test_keys_move_to_the_key_groups_of_another_max_parallelism_and_hash(
    target: str, source: str, max_parallelism: int, hash_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tables(source)
    monkeypatch.setattr("keyscale.state.keyed.formats.ValueFormats.__init__", pytest.fail)  # values are not decoded
    changed = transform(source, target, max_parallelism=max_parallelism, hash_id=hash_id)
    monkeypatch.undo()
    assert tables(changed) == before
    with StateReader.open(changed) as reader:
        assert (reader.point.max_parallelism, reader.point.hash_id) == (max_parallelism, hash_id)


def test_a_state_is_written_anew_from_changed_rows_beside_states_that_stay(target: str, source: str) -> None:
    with StateReader.open(source) as reader:
        doubled = (
            batch.set_column(1, "value", pa.array([f"{value * 2}" for value in batch["value"].to_pylist()]))
            for batch in reader.table("counts", "clicks").batches()
        )
        states = [NewState(ValueStateDescriptor("clicks", pa.string()), doubled)]
        found = tables(transform(source, target, {"counts": ChangedOperator(new=states)}))
    before = tables(source)
    assert found["counts.clicks"] == {user: f"{value * 2}" for user, value in before["counts.clicks"].items()}
    assert {**found, "counts.clicks": None} == {**before, "counts.clicks": None}


def test_a_value_state_of_maps_becomes_a_map_state(target: str, source: str) -> None:
    with StateReader.open(source) as reader:
        pages = MapStateDescriptor("pages", pa.string(), pa.int64(), Ttl(60_000))
        changed = ChangedOperator(states={"visits": None}, new=[NewState(pages, reader.table("counts", "visits"))])
        location = transform(source, target, {"counts": changed})
        (before,) = reader.table("counts", "visits").batches(key=("user 7",))
    with StateReader.open(location) as reader:
        (row,) = reader.table("counts", "pages").reader().read_all().filter(pc.field("value") == 7).to_pylist()
    assert (row["map_key"], row["value"]) == ("/", 7)
    assert row["ttl_started_at"] == before["ttl_started_at"][0].as_py()


def test_names_move_at_once_and_a_new_state_may_have_the_name_of_a_renamed_one(target: str, source: str) -> None:
    before = tables(source)
    new = NewState(ValueStateDescriptor("clicks", pa.string()), pa.table({"user": ["x"], "value": ["new"]}))
    changed = ChangedOperator(states={"clicks": "old", "visits": None, EVENT_TIMERS: "visits"}, new=[new])
    found = tables(transform(source, target, {"counts": changed}))
    assert found == {
        "counts.old": before["counts.clicks"],
        "counts.visits": before[f"counts.{EVENT_TIMERS}"],
        "counts.clicks": {"x": "new"},
        "others.clicks": before["others.clicks"],
    }


def test_changed_and_new_operators_have_at_most_a_part_for_each_key_group(target: str, store: str) -> None:
    states = [
        NewState(ValueStateDescriptor("clicks", pa.int64()), pa.table({"user": USERS[:4], "value": [1, 2, 3, 4]}))
    ]
    source = write(f"{store}/{uuid.uuid4().hex}", [NewOperator("old", KEY, states)], max_parallelism=4, parallelism=3)
    changed = {"old": ChangedOperator(states={"clicks": "views"})}
    for most, parts in ((2, 2), (None, 3)):
        location = transform(source, f"{target}-{most}", changed, new=[NewOperator("new", KEY)], max_parallelism=most)
        with StateReader.open(location) as reader:
            assert reader.point.manifest is not None
            assert [each.parallelism for each in reader.point.manifest.operators] == [parts, parts]


def test_two_operators_are_merged_into_one(target: str, source: str) -> None:
    with StateReader.open(source) as reader:
        here, there = (reader.table(uid, "clicks").reader().read_all() for uid in ("counts", "others"))
        assert (here.num_rows, there.num_rows) == (40, 40)
        rows = duckdb.sql(
            "select coalesce(here.key, there.key) as key, coalesce(here.value, 0) + coalesce(there.value, 0) as value"
            " from here full join there on here.key = there.key"
        )
        clicks = NewState(ValueStateDescriptor("clicks", pa.int64()), rows.to_arrow_table())
        location = transform(source, target, {"counts": ChangedOperator(new=[clicks]), "others": None})
    before, found = tables(source), tables(location)
    assert found["counts.clicks"] == {user: 2 * value for user, value in before["counts.clicks"].items()}
    assert {*found} == {*before} - {"others.clicks"}


def test_an_operator_is_split_into_two(target: str, source: str) -> None:
    with StateReader.open(source) as reader:
        moved = NewState(ValueStateDescriptor("clicks", pa.int64()), reader.table("counts", "clicks"))
        changed = {"counts": ChangedOperator(states={"clicks": None})}
        location = transform(source, target, changed, new=[NewOperator("clicks", KEY, [moved])])
    before, found = tables(source), tables(location)
    assert found.pop("clicks.clicks") == before.pop("counts.clicks")
    assert found == before


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_a_job_goes_on_from_a_copy_of_its_savepoint_with_all_its_state(tmp_path: Path, parallelism: int) -> None:
    def operate(store: SubtaskStore) -> None:
        store.operator.list_state(ListStateDescriptor("split", pa.string())).add(f"s{store.spec.index}")
        store.operator.union_list_state(ListStateDescriptor("whole", pa.string())).add(f"w{store.spec.index}")

    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", operate=operate)
    job.start(3)
    job.run_batch(random_batch(1))
    taken = location_of(job.store.url, job.checkpoint()[0].path)
    counts = ChangedOperator(states={"count": "counted"})
    there = transform(taken, f"{job.store.url}/job/savepoints/there", {"count": counts})
    counts = ChangedOperator(states={"counted": "count"})
    back = transform(there, f"{job.store.url}/job/savepoints/back", {"count": counts})
    job.run_batch(random_batch(2))
    with StateReader.open(taken) as before, StateReader.open(back) as after:
        rows = [
            {
                name: sorted(reader.table("count", name).reader().read_all()["value"].to_pylist())
                for name in ("split", "whole")
            }
            for reader in (before, after)
        ]
        counted = after.table("count", "count").reader().read_all().to_pylist()
    assert rows[0] == {"split": ["s0", "s1", "s2"], "whole": ["w0", "w1", "w2"]}
    assert rows[1] == rows[0]
    manifest = read_manifest(job.store, "job/savepoints/back/manifest.json")
    assert (manifest.batch_id, manifest.log_position) == (0, 0)
    job.start(parallelism, manifest.path, rewinds=True)
    job.reference = {row["key"]["id"]: row["value"] for row in counted}
    job.run_batch(random_batch(3))
    assert job.dump() == job.reference


@pytest.mark.usefixtures("source")
def test_event_times_follow_a_renamed_operator(store: str, target: str) -> None:
    objects = open_store(store.removesuffix("/job/savepoints"))
    manifest = read_manifest(objects, "job/savepoints/source/manifest.json")
    times = JobTime({each.uid: EventTime(5, 3) for each in manifest.operators}, processing_ms=9)
    write_manifest(objects, msgspec.structs.replace(manifest, savepoint_id="timed", time=times))
    changed = transform(f"{store}/timed", target, {"counts": ChangedOperator(uid="totals"), "others": None})
    found = read_manifest(objects, split_location(changed)[1])
    assert found.time == JobTime({OperatorUid("totals"): EventTime(5, 3)}, processing_ms=9)


@pytest.mark.parametrize(
    ("operators", "new", "refusal", "complaint"),
    [
        ({"nothing": None}, [], UnknownStateError, "counts, others"),
        (
            {"counts": ChangedOperator(states={"gone": None})},
            [],
            UnknownStateError,
            "no keyed state 'gone'; it has: clicks",
        ),
        ({"counts": ChangedOperator(states={"clicks": "visits"})}, [], StateSchemaMismatchError, "two states 'visits'"),
        ({"counts": ChangedOperator(states={"clicks": "a b"})}, [], DescriptorError, "'a b'"),
        ({"counts": ChangedOperator(uid="others")}, [], StateSchemaMismatchError, "uid 'others'"),
        ({}, [NewOperator("counts", KEY)], StateSchemaMismatchError, "uid 'counts'"),
    ],
)
def test_changes_that_do_not_fit_are_refused(
    target: str, source: str, *, operators: Any, new: Any, refusal: type[Exception], complaint: str
) -> None:
    with pytest.raises(refusal, match=complaint):
        transform(source, target, operators, new=new)


def test_a_copy_is_in_the_store_of_its_source(tmp_path: Path, source: str) -> None:
    with pytest.raises(LocationError, match="in its store"):
        transform(source, f"file://{tmp_path}/elsewhere/job/savepoints/copy")
