"""Blocked Bloom filters: pure functions on their sizes, bits and blocks.

A filter is an array of blocks of 1,024 bits. All bits of a key are in one block, so a key costs one read of a small
entry and, if it is new, one write. The bits are stored, so their arrangement has a version, `FILTER_VERSION`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ..errors import InvalidTopologyError

if TYPE_CHECKING:
    import numpy.typing as npt

FILTER_VERSION: Final = 1
BLOCK_BYTES: Final = 128
BLOCK_BITS: Final = 8 * BLOCK_BYTES
CAPACITY_MAX: Final = 10**11  # so that a block number fits into 32 bits, at every error rate and parallelism
ERROR_RATE_MIN: Final = 1e-6
_BITS_PER_KEY_MAX = 40
_PLACE_BITS = 10  # of a bit's position in its block
_PLACES_PER_WORD = 64 // _PLACE_BITS
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Remembers keys in a few bits each, with a few errors.

    It mistakes some new keys for known keys.

    Attributes:
        capacity: Number of distinct keys that the whole job may receive during one TTL, or in total without a TTL.
        error_rate: Share of new keys that may be mistaken for known keys when the filter holds `capacity` keys.
    """

    capacity: int
    error_rate: float

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= CAPACITY_MAX:
            raise InvalidTopologyError(f"a filter's capacity must be 1 to {CAPACITY_MAX} keys, not {self.capacity}")
        if not ERROR_RATE_MIN <= self.error_rate <= 0.5:
            raise InvalidTopologyError(f"a filter's error rate must be {ERROR_RATE_MIN} to 0.5, not {self.error_rate}")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The dimensions of a filter.

    Attributes:
        bits_per_key: Number of bits that a key sets in its block; some may coincide.
        keys_per_block: Average number of keys in a block of a full filter.
    """

    bits_per_key: int
    keys_per_block: int

    def blocks_per_group(self, capacity: int, max_parallelism: int) -> int:
        """Returns the number of blocks per key group.

        With it, all key groups together hold `capacity` keys.
        """
        return -(-capacity // (self.keys_per_block * max_parallelism))


@lru_cache(maxsize=16)
def geometry_of(error_rate: float) -> Geometry:
    """Returns the smallest filter that keeps an error rate when full.

    The error rate is the share of new keys that the filter mistakes for known keys.

    Raises:
        InvalidTopologyError: No filter has an error rate that low.
    """
    best = Geometry(0, 0)
    for bits in range(1, _BITS_PER_KEY_MAX + 1):
        keys = _keys_per_block(bits, error_rate)
        if keys > best.keys_per_block:
            best = Geometry(bits, keys)
    if not best.keys_per_block:
        raise InvalidTopologyError(f"no filter has an error rate as low as {error_rate}")
    return best


def false_positive_rate(geometry: Geometry) -> float:
    """Returns the error rate of a full filter with unevenly full blocks."""
    mean = geometry.keys_per_block
    spread = 12 * math.sqrt(mean) + 20
    weights = ((keys, _poisson(keys, mean)) for keys in range(int(mean + spread)))
    return sum(weight * _false_positives(keys, geometry.bits_per_key) for keys, weight in weights)


def blocks_of(hashes: npt.NDArray[np.uint64], blocks_per_group: int) -> npt.NDArray[np.uint64]:
    """Returns the index of each key's block within its key group."""
    return (hashes >> np.uint64(32)) * np.uint64(blocks_per_group) >> np.uint64(32)


def places_of(hashes: npt.NDArray[np.uint64], bits_per_key: int) -> npt.NDArray[np.uint16]:
    """Returns the positions of each key's bits in its block.

    The result has one row per key, computed from words of SplitMix64.
    """
    places = np.empty((len(hashes), bits_per_key), np.uint16)
    mixed = hashes
    for at in range(bits_per_key):
        word, shift = divmod(at, _PLACES_PER_WORD)
        if shift == 0:
            mixed = _mixed(hashes + np.uint64(_STEP * (word + 1) % (1 << 64)))
        places[:, at] = mixed >> np.uint64(_PLACE_BITS * shift) & np.uint64(BLOCK_BITS - 1)
    return places


def contained(
    blocks: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp], places: npt.NDArray[np.uint16]
) -> npt.NDArray[np.bool_]:
    """Returns whether each key may be in its block.

    `rows` are the keys' rows in `blocks`, a matrix of bytes.
    """
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


def _keys_per_block(bits_per_key: int, error_rate: float) -> int:
    """Returns the highest mean keys per block for the error rate."""
    low, high = 0, BLOCK_BITS
    while low < high:
        middle = (low + high + 1) // 2
        if false_positive_rate(Geometry(bits_per_key, middle)) <= error_rate:
            low = middle
        else:
            high = middle - 1
    return low


def _false_positives(keys: int, bits_per_key: int) -> float:
    """Returns the probability that all bits of a new key are set.

    The key's block holds `keys` other keys.

    It is the mean of (set / all)^bits. This exceeds the usual (mean of set / all)^bits, because the number of set bits
    varies.
    """
    set_bits = keys * bits_per_key
    clear = (1 - 1 / BLOCK_BITS) ** set_bits
    share = 1 - clear
    if share == 0:
        return 0.0
    both_clear = (1 - 2 / BLOCK_BITS) ** set_bits
    variance = clear / BLOCK_BITS + (1 - 1 / BLOCK_BITS) * both_clear - clear * clear
    spread = 1 + bits_per_key * (bits_per_key - 1) / 2 * max(variance, 0.0) / (share * share)
    return min(1.0, share**bits_per_key * spread)


def _poisson(count: int, mean: float) -> float:
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Applies the finalizer of SplitMix64."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
