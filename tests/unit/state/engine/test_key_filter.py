"""The Bloom filter of keys, which finds every added key."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.engine.key_filter import KeyFilter, hash_keys
from keyscale.state.keys.stored_key import StoredKeys

HASHES = [0, 12085879369255650935, 7087549660287613437, 2612966469632264314, 9126675053717659868]
BYTES = st.lists(st.binary(max_size=40), max_size=60, unique=True)


def numbered(first, count):
    return [number.to_bytes(8, "big") for number in range(first, first + count)]


@given(BYTES, BYTES)
def test_every_key_that_was_added_is_found_after_any_growth(early, late):
    keys = KeyFilter.sized(8)
    keys.add(hash_keys(early))
    keys.grow()
    keys.add(hash_keys(late))
    assert keys.may_contain(hash_keys(early + late)).all()


@given(st.lists(st.binary(max_size=20)))
def test_a_keys_hash_does_not_depend_on_the_other_keys(keys):
    assert hash_keys(keys).tolist() == [hash_keys([key])[0] for key in keys]


@given(st.lists(st.tuples(st.binary(min_size=5, max_size=5), st.booleans()), min_size=1))
def test_keys_in_a_matrix_have_the_same_hashes_as_single_keys(rows):
    keys, kept = zip(*rows, strict=True)
    block = StoredKeys.of_rows(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 5))
    chosen = block.where(kept)
    assert chosen == [key for key, is_kept in rows if is_kept]
    assert hash_keys(block).tolist() == hash_keys(list(keys)).tolist()
    assert hash_keys(chosen).tolist() == hash_keys(list(chosen)).tolist()


def test_hashes_are_those_of_stored_filters():
    found = [int(each) for each in hash_keys([b"", b"a", b"12345678", b"123456789", bytes(17)])]
    assert found == HASHES


def test_a_filter_with_as_many_keys_as_its_capacity_is_full_and_lets_few_others_pass():
    keys = KeyFilter.sized(100_000)
    assert not keys.is_full
    keys.add(hash_keys(numbered(0, 90_000)))
    assert not keys.is_full
    keys.add(hash_keys(numbered(90_000, 20_000)))
    assert keys.is_full
    assert np.mean(keys.may_contain(hash_keys(numbered(1 << 40, 100_000)))) < 0.02
    assert keys.size_bytes == 150_000


def test_keys_that_are_added_again_take_no_room():
    keys = KeyFilter.sized(100_000)
    for _ in range(5):
        keys.add(hash_keys(numbered(0, 50_000)))
    assert not keys.is_full


def test_a_new_part_has_four_times_the_capacity_of_the_last():
    keys = KeyFilter.sized(1000)
    more = keys.next_part_bytes
    before = keys.size_bytes
    keys.grow()
    assert keys.size_bytes == before + more
    assert 4900 <= keys.capacity <= 5100
    assert not keys.is_full
