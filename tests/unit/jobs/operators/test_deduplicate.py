"""Deduplication emits the first record of each key: exactly, by hash, or by a Bloom filter with rare losses."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale import BloomFilter, TimeDomain, Ttl
from keyscale.jobs.errors import InvalidTopologyError
from keyscale.jobs.operators.approximate_deduplicate import ApproximateDeduplicate
from keyscale.jobs.operators.bloom_filter import (
    BLOCK_BYTES,
    CAPACITY_MAX,
    ERROR_RATE_MIN,
    Geometry,
    blocks_of,
    false_positive_rate,
    geometry_of,
    places_of,
)
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.keyed.ttl import UpdateType
from keyscale.state.keys.key_hash import key_hashes

if TYPE_CHECKING:
    from keyscale.jobs.operators.operator_contract import OperatorLogic

NAMES = st.sampled_from(["", "ada", "bob", "cyd", "dee", "eve"])
STEPS = st.lists(st.tuples(st.integers(0, 150), st.lists(NAMES, max_size=8)), max_size=8)
ROOMY = BloomFilter(capacity=1000, error_rate=1e-6)


def harness(logic: OperatorLogic, parallelism: int = 1, key: str = "string") -> OperatorHarness:
    columns = {"id": key, "n": "bigint"}
    return OperatorHarness(logic, input=columns, key=["id"], output=columns, parallelism=parallelism)


def approximate(declared: BloomFilter, ttl: Ttl | None = None) -> ApproximateDeduplicate:
    return ApproximateDeduplicate.of(declared, ttl)


def kept(tested: OperatorHarness, ids: list[Any]) -> list[Any]:
    tested.process(*[(each, place) for place, each in enumerate(ids)])
    return [row.id for row in tested.take_output()]


@pytest.mark.parametrize("ttl", [None, Ttl(100), Ttl(100, update_type=UpdateType.ON_READ_AND_WRITE)])
@settings(max_examples=25)
@given(steps=STEPS, parallelism=st.integers(1, 3))
def test_the_hashed_form_gives_the_same_output_as_the_exact_one_at_any_parallelism(
    ttl: Ttl | None, steps: list[tuple[int, list[str]]], parallelism: int
) -> None:
    exact, hashed = harness(Deduplicate(ttl)), harness(Deduplicate(ttl, hashed=True), parallelism)
    now_ms = 0
    for wait_ms, ids in steps:
        now_ms += wait_ms
        for tested in (exact, hashed):
            tested.advance_processing_time(now_ms)
        hashed = hashed.restored(hashed.snapshot(), parallelism=4 - parallelism)
        assert sorted(kept(hashed, ids)) == sorted(kept(exact, ids))


def test_a_hashed_key_takes_eleven_bytes_at_any_length() -> None:
    tested = harness(Deduplicate(None, hashed=True))
    kept(tested, ["a", "b" * 1000, None])
    assert [len(key) for key, _ in tested.snapshot().families["seen"]] == [11, 11, 11]


@pytest.mark.parametrize("key", ["string", "bigint"])
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("second", range(5))
def test_state_of_one_form_is_refused_by_every_other(first: int, second: int, key: str) -> None:
    forms: list[OperatorLogic] = [
        Deduplicate(None),
        Deduplicate(None, hashed=True),
        approximate(ROOMY),
        approximate(replace(ROOMY, capacity=10**6)),
        approximate(ROOMY, Ttl(5)),
    ]
    tested = harness(forms[first], key=key)
    kept(tested, ["1" if key == "string" else 1])
    if first == second:
        assert tested.restored(tested.snapshot(), function=forms[second]).take_output() == []
    else:
        with pytest.raises(StateSchemaMismatchError, match=r"form|stored keys have the types"):
            tested.restored(tested.snapshot(), function=forms[second])


def test_the_stored_keys_of_the_forms_differ_in_name_so_that_a_job_is_refused_before_it_starts() -> None:
    key = pa.schema([("id", pa.int64())])
    forms = [Deduplicate(None), Deduplicate(None, hashed=True), approximate(ROOMY), approximate(ROOMY, Ttl(5))]
    assert len({tuple(form.stored_key(key).names) for form in forms}) == len(forms)


@settings(max_examples=25)
@given(steps=STEPS, parallelism=st.integers(1, 3))
def test_a_bloom_filter_remembers_every_key_for_its_ttl_across_restores_and_rescales(
    steps: list[tuple[int, list[str]]], parallelism: int
) -> None:
    tested = harness(approximate(BloomFilter(1, 0.5), Ttl(100)), parallelism)
    now_ms, passed_ms = 0, dict[str, int]()
    for wait_ms, ids in steps:
        now_ms += wait_ms
        tested.advance_processing_time(now_ms)
        tested = tested.restored(tested.snapshot(), parallelism=4 - parallelism)
        for each in kept(tested, ids):
            assert now_ms - passed_ms.get(each, -100) >= 100
            passed_ms[each] = now_ms


@settings(max_examples=25)
@given(steps=STEPS)
def test_a_bloom_filter_forgets_every_key_before_two_ttls_are_over(steps: list[tuple[int, list[str]]]) -> None:
    tested = harness(approximate(ROOMY, Ttl(100)))
    now_ms, passed_ms = 0, dict[str, int]()
    for wait_ms, ids in steps:
        now_ms += wait_ms
        tested.advance_processing_time(now_ms)
        through = kept(tested, ids)
        assert len(through) == len(set(through))
        for each in set(ids) - set(through):
            assert now_ms - passed_ms[each] < 200
        passed_ms |= dict.fromkeys(through, now_ms)


def test_a_key_that_is_read_again_is_remembered_again_if_the_ttl_says_so() -> None:
    kinds = {UpdateType.ON_CREATE_AND_WRITE: ["ada"], UpdateType.ON_READ_AND_WRITE: []}
    for update_type, expected in kinds.items():
        tested = harness(approximate(ROOMY, Ttl(100, update_type=update_type)))
        kept(tested, ["ada"])
        tested.advance_processing_time(150)
        assert kept(tested, ["ada"]) == []
        tested.advance_processing_time(210)
        assert kept(tested, ["ada"]) == expected


def test_a_ttl_that_is_switched_off_forgets_no_key() -> None:
    off = Ttl(100, update_type=UpdateType.DISABLED)
    for logic in (Deduplicate(off), Deduplicate(off, hashed=True), approximate(ROOMY, off)):
        tested = harness(logic)
        assert kept(tested, ["ada", "bob"]) == ["ada", "bob"]
        for ms in (100, 250, 100_000):
            tested.advance_processing_time(ms)
            assert kept(tested, ["ada", f"{ms}", "bob"]) == [f"{ms}"]
    assert approximate(ROOMY, off) == approximate(ROOMY)


def test_a_ttl_by_event_time_turns_generations_by_the_watermark() -> None:
    tested = harness(approximate(ROOMY, replace(Ttl(100), time_domain=TimeDomain.EVENT)))
    tested.advance_watermark(1000)
    tested.advance_processing_time(10**12)
    assert [kept(tested, ["ada"]), kept(tested, ["ada"])] == [["ada"], []]
    tested.advance_watermark(1200)
    assert kept(tested, ["ada"]) == ["ada"]


@pytest.mark.parametrize("bound_ms", [0, 5, 150])
def test_keys_before_any_watermark_are_remembered_for_the_ttl_too(bound_ms: int) -> None:
    ttl = replace(Ttl(100), time_domain=TimeDomain.EVENT)
    for logic in (Deduplicate(ttl), Deduplicate(ttl, hashed=True), approximate(ROOMY, ttl)):
        columns = {"id": "string", "n": "bigint"}
        tested = OperatorHarness(logic, input=columns, key=["id"], output=columns, timestamp="n")
        tested.process(("ada", 1000), ("bob", 1001))
        tested.advance_watermark(1000 - bound_ms)
        tested.process(("ada", 1002), ("eve", 1003))
        assert [row.id for row in tested.take_output()] == ["ada", "bob", "eve"]
        tested.advance_watermark(1201)
        tested.process(("ada", 1202))
        assert [row.id for row in tested.take_output()] == ["ada"]


def test_a_filter_never_takes_more_space_than_two_generations() -> None:
    tested = harness(approximate(BloomFilter(100_000, 0.01), Ttl(100)))
    one_generation = geometry_of(0.005).blocks_per_group(100_000, 128) * 128
    stored = []
    for turn in range(9):
        tested.advance_processing_time(turn * 100)
        kept(tested, [f"{turn}-{number}" for number in range(3000)])
        stored.append(len(tested.snapshot().families["blocks"]))
    assert one_generation < stored[-1] <= 2 * one_generation
    assert stored[-1] < 1.03 * stored[3]


def test_a_batch_changes_only_the_blocks_of_its_new_keys() -> None:
    tested = harness(approximate(BloomFilter(10**6, 0.01)))
    kept(tested, list(map(str, range(300))))
    before = dict(tested.snapshot().families["blocks"])
    assert kept(tested, [*map(str, range(300)), "new"]) == ["new"]
    after = dict(tested.snapshot().families["blocks"])
    assert len(after.items() - before.items()) == 1
    assert {len(value) for value in after.values()} == {1 + 8 + BLOCK_BYTES}


@pytest.mark.parametrize(("error_rate", "ttl"), [(0.02, None), (0.02, Ttl(100))])
@pytest.mark.parametrize("times", [1, 2])
def test_a_filter_keeps_its_error_rate_up_to_its_capacity_and_not_beyond(
    error_rate: float, ttl: Ttl | None, times: int
) -> None:
    capacity = 40_000
    tested = harness(approximate(BloomFilter(capacity, error_rate), ttl))
    generator = iter(range(10**9))

    def fresh(count: int) -> list[str]:
        return [str(uuid.UUID(int=next(generator) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)) for _ in range(count)]

    for turn in range(2 if ttl is not None else 1):
        tested.advance_processing_time(100 * turn)
        for _ in range(times * 4):
            kept(tested, fresh(capacity // 4))
    probes = fresh(20_000)
    lost = len(probes) - len(kept(tested, probes))
    # Within four standard deviations. The keys that are looked up last are few compared with the capacity.
    allowed = error_rate * len(probes) * (1 + len(probes) / capacity)
    assert (lost <= allowed + 4 * allowed**0.5) == (times == 1)


@pytest.mark.parametrize("error_rate", [0.3, 0.05, 0.01, 0.001, 1e-6])
def test_a_geometry_is_the_smallest_that_keeps_the_error_rate(error_rate: float) -> None:
    geometry = geometry_of(error_rate)
    assert false_positive_rate(geometry) <= error_rate
    fuller = Geometry(geometry.bits_per_key, geometry.keys_per_block + 1)
    assert false_positive_rate(fuller) > error_rate
    assert geometry.blocks_per_group(10**9, 128) * 128 * geometry.keys_per_block >= 10**9


@settings(max_examples=25)
@given(st.integers(1, 10**6))
def test_the_block_of_a_key_is_one_of_its_key_group(blocks: int) -> None:
    hashes = key_hashes([pa.array(list(range(500)))])
    found = blocks_of(hashes, blocks)
    assert int(found.max()) < blocks
    if blocks < 20:
        assert set(found.tolist()) == set(range(blocks))


def test_the_bits_of_a_key_are_the_same_as_in_the_first_release() -> None:
    hashes = key_hashes([pa.array(["ada", "bob", None])])
    assert blocks_of(hashes, 1000).tolist() == [102, 856, 514]
    assert places_of(hashes, 8).tolist() == [
        [51, 654, 933, 327, 908, 514, 70, 290],
        [748, 758, 733, 244, 116, 75, 741, 386],
        [981, 582, 149, 611, 201, 243, 824, 562],
    ]


@pytest.mark.parametrize(("capacity", "error_rate"), [(0, 0.1), (10, 0.0), (10, 0.6), (10**13, 0.1)])
def test_an_impossible_filter_is_refused(capacity: int, error_rate: float) -> None:
    with pytest.raises(InvalidTopologyError, match="must be"):
        BloomFilter(capacity, error_rate)


def test_a_lower_error_rate_takes_more_bits() -> None:
    bits = [1024 / geometry_of(rate).keys_per_block for rate in (0.1, 0.01, 0.001, 0.0001)]
    assert all(more / fewer > 1.2 for fewer, more in pairwise(bits))
    assert geometry_of(ERROR_RATE_MIN / 2).blocks_per_group(CAPACITY_MAX, 1) < 2**32
