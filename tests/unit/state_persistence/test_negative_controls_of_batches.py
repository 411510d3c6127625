"""Each guard of what a batch writes, its changelog and its limits, is switched off once, as in test_negative_controls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import state.changelog
import state.entries
import state.formats
import state.handle
import state.rebuild
import state.subtask
from state.changelog import ChangelogCorruptError, decode_changelog, encode_changelog
from state.descriptors import ValueStateDescriptor
from state.engine import SortedRun
from state.errors import (
    BatchTooLargeError,
    KeyGroupError,
    KeyTooLargeError,
    ValueTooLargeError,
)
from state.heap import HeapEngine
from state.identifiers import BatchId
from state.key_groups import MAX_PARALLELISM_UPPER_BOUND
from state.keyed import KeyedStateBackend
from state.objects import LocalObjectStore, ObjectCorruptError
from state.settings import RocksDbSettings
from state.stored_key import KEY_BYTES_MAX
from state.subtask import open_subtask
from tests.support.state_job import KEY_SCHEMA, StateJob, add, entries

if TYPE_CHECKING:
    from pathlib import Path


KEYS = dict.fromkeys(range(200), 1)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def nothing(*_: Any, **__: Any) -> None:
    """A guard that is switched off."""


def test_without_the_check_of_key_groups_a_changelog_holds_what_is_another_subtasks(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    foreign = next(key for key in KEYS if key not in job.own(0, KEYS))
    with pytest.raises(KeyGroupError), job.open(0) as store:
        add(store, {foreign: 1})
    assert list(job.store.list(job.layout.changelogs)) == []
    store = job.open(0)
    monkeypatch.setattr(store.keyed._context, "_last", MAX_PARALLELISM_UPPER_BOUND)
    add(store, {foreign: 1})
    assert store.finish_batch(BatchId(0), "unchecked") is not None
    assert foreign in entries(store)
    store.abandon()


def test_without_its_hash_a_changelog_says_what_no_batch_wrote(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    job.run_batch({1: 1})
    first, second = (info.path for info in job.store.list(job.layout.changelogs))
    job.store.put(second, job.store.get(first))  # whole, and of the right length: a file of an earlier batch
    job.local_root = tmp_path / "checked"
    with pytest.raises(ObjectCorruptError):
        job.open(0)
    monkeypatch.setattr(
        state.rebuild,
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
        state.changelog, "hashlib", SimpleNamespace(sha256=lambda _: SimpleNamespace(digest=lambda: digest))
    )
    assert decode_changelog(flipped_data, "it")[0].values == [b"value"]


@pytest.mark.parametrize("limit", ["batch_entries_max", "batch_bytes_max"])
def test_without_its_limits_a_batch_grows_past_what_memory_and_one_write_can_hold(job: StateJob, limit: str) -> None:
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


def test_without_the_limit_of_keys_one_that_no_column_of_lengths_can_hold_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("name", pa.string())]))
    value = backend.value_state(ValueStateDescriptor("count", pa.int64()))
    with pytest.raises(KeyTooLargeError):
        backend.set_current_key(0, ("x" * 70_000,))
    monkeypatch.setattr(state.handle, "check_key_size", nothing)
    monkeypatch.setattr(state.entries, "KEY_BYTES_MAX", 1 << 30)
    backend.set_current_key(0, ("x" * 70_000,))
    value.update(1)
    (run,) = backend.drain()
    assert len(run.keys[0]) > KEY_BYTES_MAX


def test_without_the_limit_of_values_a_larger_one_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KeyedStateBackend(HeapEngine(), KEY_SCHEMA)
    value = backend.value_state(ValueStateDescriptor("name", pa.string()))
    backend.set_current_key(0, (1,))
    monkeypatch.setattr(state.formats, "VALUE_BYTES_MAX", 1000)
    with pytest.raises(ValueTooLargeError):
        value.update("x" * 1001)
    assert value.value() is None
    monkeypatch.setattr(state.formats, "VALUE_BYTES_MAX", 10_000)
    value.update("x" * 1001)
    assert value.value() == "x" * 1001
