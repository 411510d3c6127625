"""The offline migration of a value state of maps to a map state."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.identifiers import BatchId
from keyscale.state.__main__ import main
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.documents.manifest import Manifest, read_manifest
from keyscale.state.errors import DescriptorError
from keyscale.state.inspection.checkpoint_reader import CheckpointReader
from keyscale.state.inspection.map_migration import MapMigration, MigrationRefusedError, migrate_map
from keyscale.state.inspection.state_point import UnknownStateError
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.layout import location_of
from keyscale.state.log.recovery import choose_base, missing_files
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.repository import ROOT
from tests.support.state.state_job import UID, StateJob, add, group_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore

WHOLE = pa.map_(pa.string(), pa.int64())
TTL = Ttl(100)
OLD = ValueStateDescriptor("visits", WHOLE, TTL)
NEW = MapStateDescriptor("visits_by_page", pa.string(), pa.int64(), TTL)
PLACES = ListStateDescriptor("places", pa.int64())
MIGRATION = MapMigration(UID, "visits", "visits_by_page", "migrated")
MAPS: dict[int, dict[str, int | None]] = {
    key: {f"page {number}": number if number % 3 else None for number in range(key % 5)} for key in range(200)
}


def on_each(job: StateJob, batch_id: int) -> Iterator[SubtaskStore]:
    handles = []
    for index in range(job.parallelism):
        with job.open(index) as store:
            yield store
            handles.append(store.finish_batch(BatchId(batch_id), uuid.uuid4().hex))
    job.position = job.log.append(job.position, BatchPlanned(job.attempt, BatchId(batch_id), {}))
    job.commit(BatchId(batch_id), handles)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    """A job with maps in a value state, and another state of the same keys, at parallelism 2 on three shards."""
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(3)
    job.clock.advance(processing_time_ms=1000)
    for store in on_each(job, 0):
        store.operator.list_state(PLACES).add(store.spec.index)
        own = job.own(store.spec.index, dict.fromkeys(MAPS, 1))
        add(store, own)
        state = store.keyed.state(OLD)
        for key in own:
            store.keyed.set_current_key(group_of(key), (key,))
            state.update(MAPS[key])
    job.start(2)
    job.reference = dict.fromkeys(MAPS, 1)
    return job


@pytest.fixture
def savepoint(job: StateJob) -> Manifest:
    manifest, _ = job.checkpoint("whole")
    assert [len(snapshot.shards) for snapshot in manifest.operators[0].subtasks] == [1, 1]
    return manifest


def location(job: StateJob, manifest: Manifest) -> str:
    return location_of(job.store.url, manifest.path)


def migrated(job: StateJob, savepoint: Manifest, tmp_path: Path, migration: MapMigration = MIGRATION) -> Manifest:
    return migrate_map(CheckpointReader.open(location(job, savepoint), tmp_path), migration).manifest


def maps_of(job: StateJob) -> dict[int, dict[str, int | None]]:
    """Returns what the job that declares the map state reads, for all keys."""
    found = {}
    for index in range(job.parallelism):
        with job.open(index) as store:
            state = store.keyed.state(NEW)
            for key in job.own(index, dict.fromkeys(MAPS, 1)):
                store.keyed.set_current_key(group_of(key), (key,))
                found[key] = dict(state.items())
    return found


def places_of(job: StateJob) -> list[int]:
    """Returns the operator state of all subtasks."""
    found: list[int] = []
    for index in range(job.parallelism):
        with job.open(index) as store:
            found += store.operator.list_state(PLACES).get()
    return found


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_that_declares_the_map_state_continues_from_the_new_savepoint(
    job: StateJob, savepoint: Manifest, tmp_path: Path, parallelism: int
) -> None:
    new = migrated(job, savepoint, tmp_path)
    job.start(parallelism, new.path)
    assert maps_of(job) == MAPS
    assert job.dump() == job.reference, "other states are unchanged"
    job.clock.advance(processing_time_ms=1099)
    assert maps_of(job) == MAPS
    job.clock.advance(processing_time_ms=1100)
    assert maps_of(job) == {key: {} for key in MAPS}, "entries have the time of their map"


def test_the_new_savepoint_is_self_contained_and_the_old_one_unchanged(
    job: StateJob, savepoint: Manifest, tmp_path: Path
) -> None:
    new = migrated(job, savepoint, tmp_path)
    assert missing_files(job.store, savepoint) == []
    own = job.layout.savepoint("migrated")
    job.store.delete([info.path for info in job.store.list("") if not info.path.startswith(own)])
    shutil.rmtree(job.local_root)
    job.start(2, new.path, rewinds=True)
    assert maps_of(job) == MAPS
    assert sorted(places_of(job)) == [0, 1, 2]
    assert list(tmp_path.glob("*/snapshots")) == []


def test_of_both_savepoints_a_job_starts_from_the_given_one(job: StateJob, savepoint: Manifest, tmp_path: Path) -> None:
    new = migrated(job, savepoint, tmp_path)
    assert choose_base(job.store, job.job_id, None).manifest == savepoint
    assert choose_base(job.store, job.job_id, savepoint.path).manifest == savepoint
    assert choose_base(job.store, job.job_id, new.path).manifest == new


def test_the_ttl_of_maps_from_before_it_begins_with_the_savepoint(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    for turn, ttl in enumerate((None, TTL)):
        for store in on_each(job, turn):
            state = store.keyed.state(ValueStateDescriptor("visits", WHOLE, ttl))
            store.keyed.set_current_key(group_of(turn), (turn,))
            job.clock.advance(processing_time_ms=1000)
            state.update({"page": 7})
    savepoint, _ = job.checkpoint("whole")  # created at 0
    job.start(1, migrated(job, savepoint, tmp_path).path)
    job.clock.advance(processing_time_ms=1050)
    with job.open(0) as store:
        assert [(stored.key, value) for stored, value in dump(store)] == [((1,), 7)]


def test_the_maps_of_a_keys_namespaces_stay_in_their_namespaces(tmp_path: Path) -> None:
    maps = {60: {"page": 7, "other": 8}, 120: {"page": 9}}
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    for store in on_each(job, 0):
        state = store.keyed.state(replace(OLD, namespace_type=pa.int64()))
        store.keyed.set_current_key(group_of(1), (1,))
        for window, pages in maps.items():
            state.set_current_namespace(window)
            state.update(pages)
    savepoint, _ = job.checkpoint("whole")
    job.start(1, migrated(job, savepoint, tmp_path).path)
    with job.open(0) as store:
        migrated_state = store.keyed.state(replace(NEW, namespace_type=pa.int64()))
        store.keyed.set_current_key(group_of(1), (1,))
        for window, pages in maps.items():
            migrated_state.set_current_namespace(window)
            assert dict(migrated_state.items()) == pages


def dump(store: SubtaskStore) -> Any:
    store.keyed.state(NEW)
    return store.keyed.dump(NEW.name)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"operator_uid": "nobody"}, UnknownStateError, "it has: count"),
        ({"state": "nothing"}, UnknownStateError, "it has: count, others, visits"),
        ({"state": "count"}, MigrationRefusedError, "not maps"),
        ({"state": "others"}, MigrationRefusedError, "of kind list"),
        ({"map_state": "count"}, MigrationRefusedError, "has a state 'count' already"),
        ({"map_state": "visits"}, MigrationRefusedError, "name of its own"),
        ({"map_state": "1 2"}, DescriptorError, "cannot name a state"),
        ({"savepoint_id": "whole"}, MigrationRefusedError, "already has a savepoint 'whole'"),
    ],
)
def test_an_impossible_migration_is_refused_and_nothing_is_written(
    job: StateJob, tmp_path: Path, change: dict[str, str], error: type[Exception], words: str
) -> None:
    for store in on_each(job, 1):
        store.keyed.state(ListStateDescriptor("others", pa.int64()))
        if "by_double" in change.values():
            store.keyed.state(ValueStateDescriptor("by_double", pa.map_(pa.list_(pa.int8()), pa.int64())))
        key = next(iter(job.own(store.spec.index, dict.fromkeys(MAPS, 1))))
        store.keyed.set_current_key(group_of(key), (key,))
        add(store, {key: 1})
    savepoint, _ = job.checkpoint("whole")
    before = {info.path for info in job.store.list("")}
    facts = {"operator_uid": UID, "state": "visits", "map_state": "visits_by_page", "savepoint_id": "migrated"}
    with pytest.raises(error, match=words):
        migrated(job, savepoint, tmp_path, MapMigration(**{**facts, **change}))
    assert {info.path for info in job.store.list("")} == before


def test_the_command_prints_where_the_new_savepoint_is(
    job: StateJob, savepoint: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["--operator", UID, "--state", "visits", "--map-state", "visits_by_page", "--savepoint-id", "migrated"]
    assert main(["migrate-map", *names, location(job, savepoint)]) == 0
    entries = sum(map(len, MAPS.values()))
    where = location_of(job.store.url, job.layout.manifest(savepoint.checkpoint_id, "migrated"))
    assert capsys.readouterr().out == f"200 maps are {entries:,} map entries in {where}\n"
    assert main(["migrate-map", *names, location(job, savepoint)]) == 1
    assert "STATE_MIGRATION_REFUSED" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["migration.subtask_stored", "migration.publishing"])
def test_a_killed_migration_has_changed_nothing_and_can_be_repeated(
    job: StateJob, savepoint: Manifest, tmp_path: Path, step: str
) -> None:
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    names = ["--operator", UID, "--state", "visits", "--map-state", "visits_by_page", "--savepoint-id", "migrated"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "keyscale.state",
            "migrate-map",
            *names,
            "--scratch",
            str(tmp_path),
            location(job, savepoint),
        ],
        cwd=ROOT,
        env={**os.environ, FAILPOINT: step, FAILPOINT_DIRECTORY: str(barrier)},
    )
    wait_until((barrier / f"{step}.{process.pid}").exists, what=f"the migration to reach {step}")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert job.store.head(job.layout.manifest(savepoint.checkpoint_id, "migrated")) is None
    assert choose_base(job.store, job.job_id, None).manifest == savepoint
    new = migrated(job, savepoint, tmp_path)
    assert read_manifest(job.store, new.path) == new
    job.start(2, new.path)
    assert maps_of(job) == MAPS
