"""Each guard of a batch's writes, changelog and limits is switched off once, as in test_negative_controls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import keyscale.state.documents.changelog
import keyscale.state.keyed.entries
import keyscale.state.keyed.formats
import keyscale.state.keyed.keyed_state
import keyscale.state.restore.rebuild
import keyscale.state.subtask.store
from keyscale.identifiers import BatchId
from keyscale.state.documents.changelog import ChangelogCorruptError, decode_changelog, encode_changelog
from keyscale.state.engine.engine import SortedRun
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.errors import BatchTooLargeError, KeyGroupError, KeyTooLargeError, ValueTooLargeError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keys.stored_key import KEY_BYTES_MAX
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.subtask.store import open_subtask
from keyscale.vocabulary import KEY_GROUPS_MAX
from tests.support.state.state_job import KEY_SCHEMA, StateJob, add, entries

if TYPE_CHECKING:
    from pathlib import Path


KEYS = dict.fromkeys(range(200), 1)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def nothing(*_: Any, **__: Any) -> None:
    """Stands for a guard that is switched off."""


def test_without_the_check_of_key_groups_a_changelog_holds_another_subtasks_keys(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    foreign = next(key for key in KEYS if key not in job.own(0, KEYS))
    with pytest.raises(KeyGroupError), job.open(0) as store:
        add(store, {foreign: 1})
    assert list(job.store.list(job.layout.changelogs)) == []
    store = job.open(0)
    monkeypatch.setattr(store.keyed._context, "_last", KEY_GROUPS_MAX)
    add(store, {foreign: 1})
    assert store.finish_batch(BatchId(0), "unchecked") is not None
    assert foreign in entries(store)
    store.abandon()


def test_without_its_hash_a_replaced_changelog_is_accepted(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    job.run_batch({1: 1})
    first, second = (info.path for info in job.store.list(job.layout.changelogs))
    job.store.put(second, job.store.get(first))  # a complete file of an earlier batch, of the same length
    job.local_root = tmp_path / "checked"
    with pytest.raises(ObjectCorruptError):
        job.open(0)
    monkeypatch.setattr(
        keyscale.state.restore.rebuild,
        "read_changelog",
        lambda store, handle: decode_changelog(store.get(handle.path), handle.path),
    )
    job.local_root = tmp_path / "not checked"
    assert job.dump() == {1: 1} != job.reference


def test_without_its_own_checksum_a_flipped_changelog_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_changelog([SortedRun("count", [b"key"], [b"value"])])
    flipped_data = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(ChangelogCorruptError):
        decode_changelog(flipped_data, "it")
    digest = flipped_data[-32:]
    monkeypatch.setattr(
        keyscale.state.documents.changelog,
        "hashlib",
        SimpleNamespace(sha256=lambda _: SimpleNamespace(digest=lambda: digest)),
    )
    assert decode_changelog(flipped_data, "it")[0].values == [b"value"]


@pytest.mark.parametrize("limit", ["batch_entries_max", "batch_bytes_max"])
def test_without_its_limits_a_batch_grows_beyond_memory_and_the_size_of_one_write(job: StateJob, limit: str) -> None:
    job.start(1)
    for allowed in (10, 1_000_000):
        settings = replace(RocksDbSettings(), **{limit: allowed})
        store = open_subtask(
            replace(job.spec(0), settings=settings), job.version(0), job.plans[0], job.local_root, job.store
        )
        add(store, KEYS)
        if allowed == 10:
            with pytest.raises(BatchTooLargeError):
                store.finish_batch(BatchId(0), "limited")
        else:
            assert store.finish_batch(BatchId(0), "unlimited") is not None
        store.abandon()


def test_without_the_limit_of_keys_a_key_too_long_for_the_length_column_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("name", pa.string())]))
    value = backend.state(ValueStateDescriptor("count", pa.int64()))
    with pytest.raises(KeyTooLargeError):
        backend.set_current_key(0, ("x" * 70_000,))
    monkeypatch.setattr(keyscale.state.keyed.keyed_state, "check_key_size", nothing)
    monkeypatch.setattr(keyscale.state.keyed.entries, "check_key_size", nothing)
    backend.set_current_key(0, ("x" * 70_000,))
    value.update(1)
    (run,) = backend.drain()
    assert len(run.keys[0]) > KEY_BYTES_MAX


def test_without_the_limit_of_values_a_larger_one_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KeyedStateBackend(HeapEngine(), KEY_SCHEMA)
    value = backend.state(ValueStateDescriptor("name", pa.string()))
    backend.set_current_key(0, (1,))
    monkeypatch.setattr(keyscale.state.keyed.formats, "VALUE_BYTES_MAX", 1000)
    with pytest.raises(ValueTooLargeError):
        value.update("x" * 1001)
    assert value.value() is None
    monkeypatch.setattr(keyscale.state.keyed.formats, "VALUE_BYTES_MAX", 10_000)
    value.update("x" * 1001)
    assert value.value() == "x" * 1001
