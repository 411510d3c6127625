"""What differs between two snapshots of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale.state.inspection.state_point import StatePoint
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.layout import location_of
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state_io import NewOperator, NewOperatorState, NewState, StateReader, difference, write
from keyscale.state_io.difference import Change, NotComparableError, differences
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.documents.manifest import Manifest
    from keyscale.state.subtask.store import SubtaskStore


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def opened(job: StateJob, manifest: Manifest) -> StateReader:
    return StateReader.open(location_of(job.store.url, manifest.path))


def changes(job: StateJob, before: Manifest, after: Manifest) -> dict[str, list[Change]]:
    with opened(job, before) as old, opened(job, after) as new:
        return {each.state: list(each.changes()) for each in differences(old, new)}


def test_added_removed_and_changed_keys_are_found_across_a_rescale(job: StateJob) -> None:
    job.start(2)
    job.run_batch({1: 1, 2: 2, 3: 3})
    before, _ = job.checkpoint()
    job.start(3, before.path)
    job.run_batch({2: 5, 4: 4})
    after, _ = job.checkpoint()
    found = {change.row["key"]["id"]: change for change in changes(job, before, after)["count"]}
    assert {key: (change.kind, change.before, change.after) for key, change in found.items()} == {
        2: ("changed", 2, 7),
        4: ("added", None, 4),
    }
    backwards = changes(job, after, before)["count"]
    assert {(change.kind, change.before, change.after) for change in backwards} == {
        ("changed", 7, 2),
        ("removed", 4, None),
    }
    with opened(job, before) as old, opened(job, after) as new:
        (difference,) = differences(old, new)
        assert len(list(difference.changes())) == 2
        assert difference.counts == {"changed": 1, "added": 1}


def test_a_renewed_ttl_is_no_difference(tmp_path: Path) -> None:
    clock = BatchClock(processing_time_ms=1000)
    descriptor = ValueStateDescriptor("count", pa.int64(), Ttl(10_000))
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", clock=clock, descriptor=descriptor)
    job.start(1)
    job.run_batch({1: 1})
    before, _ = job.checkpoint()
    clock.advance(processing_time_ms=5000, event_time_ms=0)
    job.run_batch({1: 0})
    after, _ = job.checkpoint()
    assert changes(job, before, after) == {"count": []}


def test_operator_state_is_compared_without_the_places_of_elements(job: StateJob) -> None:
    written: dict[str, Any] = {}

    def operate(store: SubtaskStore) -> None:
        store.operator.list_state(ListStateDescriptor("split", pa.int64())).update(written["split"])
        rules = store.operator.broadcast_state(MapStateDescriptor("rules", pa.string(), pa.int64()))
        rules.clear()
        rules.put_all(written["rules"])

    job.operate = operate
    job.start(1)
    written |= {"split": [1, 2, 2], "rules": {"a": 1, "b": 2}}
    job.run_batch({1: 1})
    before, _ = job.checkpoint()
    written |= {"split": [2, 3, 1], "rules": {"a": 1, "b": 3, "c": 4}}
    job.run_batch({})
    after, _ = job.checkpoint()
    found = changes(job, before, after)
    assert [(each.kind, each.before, each.after) for each in found["split"]] == [
        ("removed", 2, None),
        ("added", None, 3),
    ]
    assert [(each.kind, each.row["map_key"], each.after) for each in found["rules"]] == [
        ("changed", "b", 3),
        ("added", "c", 4),
    ]


def test_a_state_that_is_in_one_snapshot_alone_is_added_or_removed_as_a_whole(job: StateJob) -> None:
    def operate(store: SubtaskStore) -> None:
        rules = store.operator.broadcast_state(MapStateDescriptor("rules", pa.string(), pa.int64()))
        rules.clear()
        rules.put_all({"b": 2} if has_less else {"a": 1, "b": 2})

    job.start(1)
    job.run_batch({1: 1})
    before, _ = job.checkpoint()
    has_less, job.operate = False, operate
    job.run_batch({})
    after, _ = job.checkpoint()
    added = changes(job, before, after)["rules"]
    assert [(each.kind, each.row["map_key"], each.before, each.after) for each in added] == [
        ("added", "a", None, 1),
        ("added", "b", None, 2),
    ]
    removed = changes(job, after, before)["rules"]
    assert [(each.kind, each.before, each.after) for each in removed] == [("removed", 1, None), ("removed", 2, None)]
    has_less = True
    job.run_batch({})
    less, _ = job.checkpoint()
    (only,) = changes(job, after, less)["rules"]
    assert (only.kind, only.row["map_key"], only.before, only.after) == ("removed", "a", 1, None)
    with opened(job, before) as old, opened(job, after) as new:
        assert [(each.operator, each.state) for each in differences(old, new, "count")] == [
            ("count", "count"),
            ("count", "rules"),
        ]
        assert differences(old, new, "another") == []


def test_a_state_of_another_kind_is_no_counterpart_and_many_changes_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference, "_TOGETHER", 2)

    def written(name: str, states: list[Any], operator_states: Any = ()) -> StateReader:
        operator = NewOperator("count", {"id": pa.int64()}, states, operator_states)
        return StateReader.open(write(f"file://{tmp_path}/store/job/savepoints/{name}", [operator], max_parallelism=1))

    value, other = (ValueStateDescriptor(name, pa.int64()) for name in ("value", "other"))
    by_bytes, by_text = (MapStateDescriptor("map", of_type, pa.int64()) for of_type in (pa.binary(), pa.string()))
    old = [
        NewState(value, pa.table({"id": range(7), "value": range(7)})),
        NewState(other, pa.table({"id": [1], "value": [10]})),
        NewState(by_bytes, pa.table({"id": [1], "map_key": [b"2"], "value": [3]})),
    ]
    new = [
        NewState(value, pa.table({"id": range(1, 9), "value": [1, 20, 30, 40, 50, 6, 7, 8]})),
        NewState(by_text, pa.table({"id": [1], "map_key": ["2"], "value": [3]})),
    ]
    listed = NewOperatorState(ListStateDescriptor("other", pa.int64()), pa.table({"value": [10]}))
    with written("old", old) as before, written("new", new, [listed]) as after:
        found = {each.state: list(each.changes()) for each in differences(before, after)}
    rows = {each.row["key"]["id"]: (each.kind, each.before, each.after) for each in found["value"]}
    assert rows == {
        0: ("removed", 0, None),
        **{key: ("changed", key, 10 * key) for key in range(2, 6)},
        7: ("added", None, 7),
        8: ("added", None, 8),
    }
    for state, value_ in (("other", 10), ("map", 3)):
        assert [(each.kind, each.before, each.after) for each in found[state]] == [
            ("removed", value_, None),
            ("added", None, value_),
        ]


def test_states_with_other_key_groups_are_refused(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    manifest, _ = job.checkpoint()
    other = StatePoint.of_manifest(job.store, msgspec.structs.replace(manifest, max_parallelism=32))
    with opened(job, manifest) as one, StateReader(other) as two, pytest.raises(NotComparableError, match="32"):
        differences(one, two)
