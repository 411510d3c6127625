"""The state in snapshots, and after batches of a job, as rows."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.identifiers import JobId
from keyscale.state.inspection import shard_reader
from keyscale.state.inspection.shard_reader import ShardReader
from keyscale.state.inspection.source_ends import source_ends
from keyscale.state.inspection.state_point import BatchNotStoredError, StatePoint, UnknownStateError
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from keyscale.state.layout import location_of
from keyscale.state.objects.errors import ObjectNotFoundError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state_io import KeyedStateTable, StateReader, partitions_of
from tests.support.rehearsal.page_views_rehearsal import PARALLELISM, page_views_rehearsal
from tests.support.rehearsal.rehearsal import JOB
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import KEYS, KINDS, NAMESPACE, NOW_MS, SAVEPOINT, UID, VALUES, group_of
from tests.support.state.state_job import StateJob, random_batch

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.documents.manifest import Manifest
    from keyscale.state.subtask.store import SubtaskStore

LOCATION = f"{(GOLDEN / 'savepoint-v1').as_uri()}/every-kind/savepoints/{SAVEPOINT}/manifest.json"


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def counts(reader: StateReader) -> dict[int, int]:
    rows = reader.table("count", "count").reader().read_all().to_pylist()
    found = {row["key"]["id"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def located(job: StateJob, manifest: Manifest) -> str:
    return location_of(job.store.url, manifest.path)


def test_every_kind_and_type_of_an_old_savepoint_comes_back() -> None:
    with StateReader.open(LOCATION, shards_open=2) as reader:
        found = {table.name: table.reader().read_all().to_pylist() for table in reader.tables()}
    assert set(found) == {*VALUES, *KINDS}
    for name, rows in found.items():
        parts: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
        for row in rows:
            key = tuple(row["key"].values())
            assert row["key_group"] == group_of(key)
            part = row["map_key"] if name == "map" else row["list_index"] if name == "list" else None
            parts.setdefault(key, []).append((part, row["value"]))
            assert row.get("namespace") == (NAMESPACE if name == "in_window" else None)
            began = row.get("ttl_started_at")
            assert (began is None) != (name == "with_ttl")
            assert began is None or abs(began.timestamp() * 1000 - NOW_MS) <= 1000
        assert parts == dict.fromkeys(KEYS, KINDS[name] if name in KINDS else [(None, VALUES[name][1])])


def test_a_location_may_be_the_directory_of_the_manifest() -> None:
    with StateReader.open(LOCATION.removesuffix("/manifest.json")) as reader:
        assert reader.operators == [UID]


def test_unknown_names_are_refused_with_the_known_names() -> None:
    with StateReader.open(LOCATION) as reader:
        with pytest.raises(UnknownStateError, match="with_ttl"):
            reader.table(UID, "other")
        with pytest.raises(UnknownStateError, match=UID):
            reader.table("other", "map")


def test_a_closed_reader_leaves_no_file(tmp_path: Path) -> None:
    with StateReader.open(LOCATION, scratch=tmp_path) as reader:
        next(iter(reader.table(UID, "map").batches()))
        assert list(tmp_path.rglob("*.sst"))
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_read_from_the_shard_of_its_key_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    real = shard_reader.open_fetched

    def noted(*arguments: Any, **named: Any) -> Any:
        opened.append(arguments[2])
        return real(*arguments, **named)

    monkeypatch.setattr(shard_reader, "open_fetched", noted)
    with StateReader.open(LOCATION) as reader:
        table = reader.table(UID, "map")
        assert isinstance(table, KeyedStateTable)
        (batch,) = table.batches(key=KEYS[1])
        assert batch.to_pylist() == [
            {
                "key": {"name": KEYS[1][0], "number": KEYS[1][1]},
                "map_key": name,
                "value": value,
                "key_group": group_of(KEYS[1]),
            }
            for name, value in KINDS["map"]
        ]
        assert list(table.batches(key=("nobody", 1))) == []
    assert opened == [shard for shard in table.shards if group_of(KEYS[1]) in shard]


def test_shards_that_are_read_now_count_against_the_number_of_open_shards(job: StateJob, tmp_path: Path) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    job.checkpoint()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    point = StatePoint.of_job(job.store, job.job_id)
    first, second = point.shard_ranges("count")
    reader = ShardReader(point, scratch, open_max=1)
    used = reader.entries("count", "count", first, first.start_key, first.end_key)
    next(used)
    assert list(reader.entries("count", "count", second, second.start_key, second.end_key))
    assert len(list(scratch.iterdir())) == 1, "the shard that is read now"
    assert list(used)
    reader.close()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_snapshot_at_any_parallelism_has_each_key_once(job: StateJob, parallelism: int) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    base, _ = job.checkpoint()
    job.start(parallelism, base.path)
    job.run_batch(random_batch(2))
    savepoint, _ = job.checkpoint("after")
    with StateReader.open(located(job, savepoint)) as reader:
        assert counts(reader) == job.reference


def test_partitions_together_are_the_table(job: StateJob) -> None:
    job.start(3)
    job.run_batch(random_batch(1))
    location = located(job, job.checkpoint()[0])
    parts = partitions_of(location, "count", "count")
    assert len(parts) == 3
    sent = [pickle.loads(pickle.dumps(part)) for part in parts]  # noqa: S301 (our own)
    rows = [row for part in sent for batch in part.batches() for row in batch.to_pylist()]
    assert {row["key"]["id"]: row["value"] for row in rows} == job.reference
    (single,) = partitions_of(location, "count", "count", key=(rows[0]["key"]["id"],))
    assert [row for batch in single.batches() for row in batch.to_pylist()] == [rows[0]]


def test_operator_state_has_a_row_per_element_and_a_broadcast_map_appears_once(job: StateJob) -> None:
    def operate(store: SubtaskStore) -> None:
        store.operator.list_state(ListStateDescriptor("split", pa.string())).add(f"s{store.spec.index}")
        store.operator.union_list_state(ListStateDescriptor("union", pa.int64())).add_all([1, 2])
        rules = store.operator.broadcast_state(MapStateDescriptor("rules", pa.string(), pa.int64()))
        rules.put_all({"a": 1, "b": None})

    job.operate = operate
    job.start(2)
    job.run_batch({1: 1})
    with StateReader.open(located(job, job.checkpoint()[0])) as reader:
        found = {table.name: (table.kind, table.reader().read_all().to_pylist()) for table in reader.tables()}
    assert found["split"] == (
        "split",
        [{"subtask": 0, "list_index": 0, "value": "s0"}, {"subtask": 1, "list_index": 0, "value": "s1"}],
    )
    assert len(found["union"][1]) == 4
    assert found["rules"] == ("broadcast", [{"map_key": "a", "value": 1}, {"map_key": "b", "value": None}])


def test_the_latest_state_is_the_snapshot_followed_by_the_changelogs(job: StateJob) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    base, _ = job.checkpoint()
    job.start(3, base.path)
    job.run_batch(random_batch(2))
    job.run_batch(random_batch(3))
    with StateReader.of_job(job.store.url, job.job_id) as reader:
        assert (reader.point.batch_id, reader.point.manifest) == (2, base)
        assert counts(reader) == job.reference


def test_the_state_after_each_stored_batch_can_be_read(job: StateJob) -> None:
    job.start(2)
    after = {}
    for number in range(4):
        job.run_batch(random_batch(number))
        after[number] = dict(job.reference)
        if number == 2:
            job.checkpoint()
    for number, expected in after.items():
        with StateReader.of_job(job.store.url, job.job_id, number) as reader:
            assert reader.point.batch_id == number
            assert counts(reader) == expected
    with pytest.raises(BatchNotStoredError, match="not yet batch 9"):
        StateReader.of_job(job.store.url, job.job_id, 9)


def test_a_batch_of_the_history_before_a_rewind_is_not_read(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    base, _ = job.checkpoint("before")
    job.run_batch({1: 100})
    job.run_batch({1: 100})
    job.start(1, base.path, rewinds=True)
    job.run_batch({1: 5})
    with StateReader.of_job(job.store.url, job.job_id, 1) as reader:
        assert counts(reader) == {1: 6}
    with StateReader.of_job(job.store.url, job.job_id, 0) as reader:
        assert counts(reader) == {1: 1}


def test_a_batch_whose_changelogs_were_deleted_is_refused(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    job.run_batch({1: 1})
    job.checkpoint()
    job.store.delete([job.layout.log_entry(position) for position in (1, 2, 3)])
    with pytest.raises(BatchNotStoredError, match="cleaned up"):
        StateReader.of_job(job.store.url, job.job_id, 0)


def test_a_job_that_has_never_run_has_no_state(tmp_path: Path) -> None:
    with StateReader.of_job(f"file://{tmp_path}", "never") as reader:
        assert reader.tables() == []


def test_a_missing_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        StateReader.open(f"file://{tmp_path}/job/chk-1")


def test_source_positions_are_those_of_the_batch(tmp_path: Path) -> None:
    job = page_views_rehearsal(tmp_path)
    job.start(PARALLELISM)
    job.run_batches(2)
    job.checkpoint()
    store = LocalObjectStore(tmp_path / "store")
    with StateReader.of_job(store.url, JobId(JOB)) as at_checkpoint:
        first = source_ends(at_checkpoint.point)
    job.run_batches(1)
    with StateReader.of_job(store.url, JobId(JOB)) as later:
        second = source_ends(later.point)
    assert first
    assert second.keys() == first.keys()
    assert first != second
