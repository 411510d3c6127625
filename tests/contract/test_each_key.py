"""Walking through a batch gives the same results as setting each key, on both engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.errors import KeyGroupError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.keyed_state import SAMPLE_ROWS
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.key_groups import KeyGroupRange
from tests.contract.keyed_store import KEY, MAP, REDUCING, VALUE, open_store

ROWS = 2 * SAMPLE_ROWS + 7


@pytest.fixture(params=["heap", "rocksdb"])
def store(request, tmp_path):
    with open_store(request.param, tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def reads(store, monkeypatch):
    """Returns the list of keys that are read from the engine one by one."""
    read, get = [], store.engine.get

    def counted(family, key):
        read.append(key)
        return get(family, key)

    monkeypatch.setattr(store.engine, "get", counted)
    return read


def batch_of(names):
    return np.array([len(name) for name in names], np.int32), pa.array(names)


def each_key(backend, names, *fields):
    groups, keys = batch_of(names)
    return backend.each_key(groups, [keys], [(name,) for name in names], fields)


def random_names(seed):
    return [f"user-{number}" for number in np.random.default_rng(seed).integers(0, 1500, ROWS).tolist()]


def random_pages(seed):
    return [f"page-{number}" for number in np.random.default_rng(seed + 10).integers(0, 3, ROWS).tolist()]


def test_a_walk_with_values_read_ahead_gives_the_same_counts_as_key_by_key(store):
    value, reduced, entries = (store.backend.state(each) for each in (VALUE, REDUCING, MAP))
    expected = {}
    for batch in range(3):
        for at, (key,) in enumerate(each_key(store.backend, random_names(batch))):
            assert value.value() == (expected.get(key) or (None,))[-1]
            assert reduced.get() == max(expected.get(key, ()), default=None)
            assert entries.get("last") == (expected.get(key) or (None,))[-1]
            if at % 50 == 0 and key in expected:
                for state in (value, reduced, entries):
                    state.clear()
                del expected[key]
            else:
                value.update(at)
                reduced.add(at)
                entries.put("last", at)
                expected.setdefault(key, []).append(at)
        store.commit()


def test_the_key_of_each_row_is_the_current_one(store):
    names = random_names(1)
    for key, name in zip(each_key(store.backend, names), names, strict=True):
        assert (key, store.backend.current_key, store.backend.current_key_group) == ((name,), (name,), len(name))


def test_a_state_that_is_read_for_each_key_is_read_for_many_at_once(store, reads):
    value = store.backend.state(VALUE)
    for _ in each_key(store.backend, [str(number) for number in range(ROWS)]):
        value.value()
    assert len(reads) == SAMPLE_ROWS


def test_a_state_that_is_read_for_few_keys_is_not_read_for_all(store, reads, monkeypatch):
    monkeypatch.setattr(store.engine, "get_many", None)
    value = store.backend.state(VALUE)
    for key in each_key(store.backend, [str(number) for number in range(ROWS)]):
        value.update(7)
        if key[0].endswith("00"):
            value.value()
    assert not reads  # because they were changed before


def test_a_map_that_is_read_at_a_field_of_each_row_gives_the_same_counts_as_entry_by_entry(store):
    entries = store.backend.state(MAP)
    expected = {}
    for batch in range(3):
        names, pages = random_names(batch), random_pages(batch)
        walk = each_key(store.backend, names, pa.array(names), pa.array(pages), pa.array(range(ROWS)))
        for at, ((key,), page) in enumerate(zip(walk, pages, strict=True)):
            assert entries.get(page) == expected.get((key, page))
            if at % 50 == 0:
                entries.clear()
                expected = {each: value for each, value in expected.items() if each[0] != key}
            else:
                entries.put(page, at)
                expected[key, page] = at
        store.commit()


@pytest.mark.parametrize("asked", ["field", "other"])
def test_a_map_is_read_for_many_rows_at_once_by_the_field_that_is_its_key(store, reads, asked):
    entries = store.backend.state(MAP)
    names = [str(number) for number in range(ROWS)]
    field = pa.array([f"page-{name}" for name in names])
    for _, page in zip(each_key(store.backend, names, pa.array(names), field), field.to_pylist(), strict=True):
        entries.get(page if asked == "field" else f"{page}-of-no-field")
    assert len(reads) == (SAMPLE_ROWS if asked == "field" else ROWS)


def test_a_field_that_is_too_long_for_a_key_is_ignored(store):
    entries = store.backend.state(MAP)
    names = [str(number) for number in range(ROWS)]
    for at in (1, ROWS - 1):  # in the sample, and after it
        fields = [*names[:at], "x" * 70_000, *names[at + 1 :]]
        for (name,) in each_key(store.backend, names, pa.array(fields)):
            assert entries.get(name) is None


def test_values_that_are_read_ahead_expire_like_others(store):
    clock = BatchClock(processing_time_ms=1000)
    backend = KeyedStateBackend(store.engine, KEY, clock)
    value = backend.state(replace(VALUE, ttl=Ttl(500)))
    names = [str(number) for number in range(ROWS)]
    for _ in each_key(backend, names):
        value.update(1)
    store.engine.write_runs(backend.drain())
    clock.advance(processing_time_ms=1499)
    assert {value.value() for _ in each_key(backend, names)} == {1}
    clock.advance(processing_time_ms=1500)
    assert {value.value() for _ in each_key(backend, names)} == {None}


def test_keys_of_another_subtask_are_refused_before_the_first(store):
    backend = KeyedStateBackend(store.engine, KEY, key_group_range=KeyGroupRange(0, 3))
    with pytest.raises(KeyGroupError):
        next(each_key(backend, ["a", "abcd"]))
