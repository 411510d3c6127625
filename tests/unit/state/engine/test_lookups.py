"""Lookups by several threads: each key is read once, values are in order, and errors of any thread are raised."""

from __future__ import annotations

import threading

import pytest

from keyscale.state.engine.lookups import Lookups


class DamagedError(Exception):
    """The error that the reads below raise."""


def keys_of(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") for number in range(count)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 1024, 2047, 2048, 2049, 3073, 10_000])
def test_each_key_is_read_once_and_its_value_is_at_its_position(threads: int, count: int) -> None:
    asked: list[bytes] = []

    def read(keys: list[bytes]) -> list[bytes | None]:
        asked.extend(keys)
        return [key + b"!" for key in keys]

    lookups, keys = Lookups(threads), keys_of(count)
    assert lookups.get(read, keys) == [key + b"!" for key in keys]
    assert sorted(asked) == keys
    lookups.close()


def test_large_lookups_are_shared_and_small_ones_are_not() -> None:
    readers: set[int] = set()
    both = threading.Barrier(2, timeout=30)

    def read_together(keys: list[bytes]) -> list[bytes | None]:
        if threading.get_ident() not in readers:
            readers.add(threading.get_ident())
            both.wait()  # passes only if two threads read at the same time
        return [None] * len(keys)

    lookups = Lookups(2)
    lookups.get(read_together, keys_of(2048))
    assert len(readers) == 2

    alone: set[int] = set()
    lookups.get(lambda keys: alone.add(threading.get_ident()) or [None] * len(keys), keys_of(2047))
    assert alone == {threading.get_ident()}
    lookups.close()


@pytest.mark.parametrize("bad", [0, 2500])
def test_an_error_of_a_thread_is_raised(bad: int) -> None:
    wrong = keys_of(3000)[bad]

    def read(keys: list[bytes]) -> list[bytes | None]:
        if wrong in keys:
            raise DamagedError
        return [None] * len(keys)

    lookups = Lookups(2)
    with pytest.raises(DamagedError):
        lookups.get(read, keys_of(3000))
    lookups.close()
