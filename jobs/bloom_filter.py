"""Blocked Bloom filters: how large, where a key's bits are, and the look at a whole batch's blocks. Pure.

A filter is an array of blocks of 1,024 bits. All bits of a key are in one block, so that a key costs one read and, when it is
new, one write of a small entry. What is said here about bits is stored, so it is versioned with `FILTER_VERSION`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from jobs.errors import InvalidTopologyError

if TYPE_CHECKING:
    import numpy.typing as npt

FILTER_VERSION: Final = 1
BLOCK_BYTES: Final = 128
BLOCK_BITS: Final = 8 * BLOCK_BYTES
CAPACITY_MAX: Final = 10**11  # so that the number of blocks fits 32 bits, at every error rate and parallelism
ERROR_RATE_MIN: Final = 1e-6
_BITS_A_KEY_MAX = 40
_PLACE_BITS = 10  # a bit's place in its block
_PLACES_A_WORD = 64 // _PLACE_BITS
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Remembers keys in a few bits each, and takes some new ones for old ones.

    Attributes:
        capacity: How many different keys a TTL's time may bring to the whole job; without a TTL, all of its time.
        error_rate: How many of the new keys may be taken for seen ones, at that many keys.
    """

    capacity: int
    error_rate: float

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= CAPACITY_MAX:
            message = f"a filter's capacity must be 1 to {CAPACITY_MAX} keys, not {self.capacity}"
            raise InvalidTopologyError(message)
        if not ERROR_RATE_MIN <= self.error_rate <= 0.5:
            message = f"a filter's error rate must be {ERROR_RATE_MIN} to 0.5, not {self.error_rate}"
            raise InvalidTopologyError(message)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A filter's measures.

    Attributes:
        bits_a_key: How many bits of its block a key sets; several may be the same.
        keys_a_block: How many keys a block has on average when the filter is full.
    """

    bits_a_key: int
    keys_a_block: int

    def blocks_a_group(self, capacity: int, max_parallelism: int) -> int:
        """How many blocks each key group has, so that all of them hold `capacity` keys."""
        return -(-capacity // (self.keys_a_block * max_parallelism))


@lru_cache(maxsize=16)
def geometry_of(error_rate: float) -> Geometry:
    """The smallest filter that takes at most a share of new keys for old ones when it is full.

    Raises:
        InvalidTopologyError: There is none.
    """
    best = Geometry(0, 0)
    for bits in range(1, _BITS_A_KEY_MAX + 1):
        keys = _keys_a_block(bits, error_rate)
        if keys > best.keys_a_block:
            best = Geometry(bits, keys)
    if not best.keys_a_block:
        message = f"no filter has an error rate as low as {error_rate}"
        raise InvalidTopologyError(message)
    return best


def false_positive_rate(geometry: Geometry) -> float:
    """The share of new keys that a full filter takes for old ones: over blocks that have more or fewer keys than average."""
    mean = geometry.keys_a_block
    spread = 12 * math.sqrt(mean) + 20
    weights = ((keys, _poisson(keys, mean)) for keys in range(int(mean + spread)))
    return sum(weight * _false_positives(keys, geometry.bits_a_key) for keys, weight in weights)


def blocks_of(hashes: npt.NDArray[np.uint64], blocks_a_group: int) -> npt.NDArray[np.uint64]:
    """Each key's block among those of its key group."""
    return (hashes >> np.uint64(32)) * np.uint64(blocks_a_group) >> np.uint64(32)


def places_of(hashes: npt.NDArray[np.uint64], bits_a_key: int) -> npt.NDArray[np.uint16]:
    """Each key's bits in its block, one row a key: ten bits each of as many words of SplitMix64 as are needed."""
    places = np.empty((len(hashes), bits_a_key), np.uint16)
    mixed = hashes
    for at in range(bits_a_key):
        word, shift = divmod(at, _PLACES_A_WORD)
        if shift == 0:
            mixed = _mixed(hashes + np.uint64(_STEP * (word + 1) % (1 << 64)))
        places[:, at] = mixed >> np.uint64(_PLACE_BITS * shift) & np.uint64(BLOCK_BITS - 1)
    return places


def contained(
    blocks: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp], places: npt.NDArray[np.uint16]
) -> npt.NDArray[np.bool_]:
    """Whether each key may be in its block: `rows` says which one of `blocks`, a matrix of bytes, that is."""
    found = np.ones(len(rows), np.bool_)
    for at in range(places.shape[1]):
        place = places[:, at]
        found &= blocks[rows, place >> 3] >> (place & 7).astype(np.uint8) & 1 == 1
    return found


def insert(blocks: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp], places: npt.NDArray[np.uint16]) -> None:
    """Sets each key's bits in its block."""
    for at in range(places.shape[1]):
        place = places[:, at]
        np.bitwise_or.at(blocks, (rows, place >> 3), np.uint8(1) << (place & 7).astype(np.uint8))


def _keys_a_block(bits_a_key: int, error_rate: float) -> int:
    """The most keys that a block may have on average."""
    low, high = 0, BLOCK_BITS
    while low < high:
        middle = (low + high + 1) // 2
        if false_positive_rate(Geometry(bits_a_key, middle)) <= error_rate:
            low = middle
        else:
            high = middle - 1
    return low


def _false_positives(keys: int, bits_a_key: int) -> float:
    """The chance that all bits of a new key are set in a block that holds `keys` others.

    It is the mean of (set / all)^bits, which is above the usual (mean of set / all)^bits by what the spread of `set` adds.
    """
    set_bits = keys * bits_a_key
    clear = (1 - 1 / BLOCK_BITS) ** set_bits
    share = 1 - clear
    if share == 0:
        return 0.0
    both_clear = (1 - 2 / BLOCK_BITS) ** set_bits
    variance = clear / BLOCK_BITS + (1 - 1 / BLOCK_BITS) * both_clear - clear * clear
    spread = 1 + bits_a_key * (bits_a_key - 1) / 2 * max(variance, 0.0) / (share * share)
    return min(1.0, share**bits_a_key * spread)


def _poisson(count: int, mean: float) -> float:
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
