"""A filter over all keys of a family, for batches of keys.

RocksDB has one filter per file: for an absent key it queries the filter of every file, and each lookup is a call from
Python. This filter answers for a batch of keys in a few milliseconds, whatever the number of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..keys.stored_key import StoredKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]
    Hashes = npt.NDArray[np.uint64]

_WORD_BITS = 64
_BITS_PER_KEY = 12
_GROWTH = 4  # capacity of a new part per key of the previous part; high, so that there are few parts to query
_SHIFTS = tuple(np.uint64(6 * place) for place in range(5))  # each selects six bits of a hash, for one bit in a word
_FULL = 1 - np.exp(-len(_SHIFTS) / _BITS_PER_KEY)  # share of set bits in a full part
_SAMPLE_WORDS = 1 << 14
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))
_HALF = np.uint64(32)
_JUDGED_LOOKUPS = 1 << 20
_SPARED_MIN = 0.25  # share of the lookups; a filter that spares fewer is not worth its memory


@dataclass(slots=True, eq=False)
class FamilyFilter:
    """The key filter of one family, with counts of its latest lookups.

    The filter may be incomplete.

    Attributes:
        keys: Has all of the family's keys that are less than `covered`, and perhaps others.
        covered: The first key that may be missing in `keys`; None if `keys` is complete.
        asked: Looked-up keys below `covered`.
        spared: How many of them are certainly absent.
    """

    keys: KeyFilter
    covered: bytes | None
    asked: int = 0
    spared: int = 0

    def possible(self, keys: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Returns which of these keys the family may have."""
        found = self.keys.may_contain(hash_keys(keys))
        covered = self.covered
        if covered is None:
            self.asked += len(keys)
        else:
            beyond = np.fromiter((key >= covered for key in keys), np.bool_, len(keys))
            self.asked += len(keys) - int(np.count_nonzero(beyond))
            found |= beyond
        self.spared += len(keys) - int(np.count_nonzero(found))
        return found

    def hashes_of(self, keys: Sequence[bytes]) -> Hashes:
        """Returns the hashes of new keys that the filter must have."""
        hashes, covered = hash_keys(keys), self.covered
        return hashes if covered is None else hashes[np.fromiter((key < covered for key in keys), np.bool_, len(keys))]

    def cover(self, keys: Sequence[bytes], *, to_the_end: bool) -> None:
        """Adds the family's next ascending keys after `covered`.

        `to_the_end` says that they are the last.
        """
        self.keys.add(hash_keys(keys))
        if to_the_end:
            self.covered = None
        elif keys:
            self.covered = keys[-1] + b"\0"

    def is_useful(self) -> bool:
        """Returns whether the filter has spared enough of the latest lookups.

        It is True while there are too few lookups to decide.
        """
        if self.asked < _JUDGED_LOOKUPS:
            return True
        enough = self.spared >= _SPARED_MIN * self.asked
        self.asked = self.spared = 0
        return enough


class KeyFilter:
    """A Bloom filter over keys with about 1 % of false positives.

    All bits of a key are in one word, so that a query costs one memory access. The filter grows by adding parts; a key
    may be in any of them.

    Args:
        parts: The words of each part, the oldest first; keys are added to the last part.
    """

    def __init__(self, parts: Sequence[Words]) -> None:
        self.parts = list(parts)

    @classmethod
    def sized(cls, keys: int) -> KeyFilter:
        """Returns an empty filter with room for a number of keys."""
        return cls([_empty(keys)])

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def capacity(self) -> int:
        """The number of keys for which the filter has room."""
        return sum(map(_room, self.parts))

    @property
    def is_full(self) -> bool:
        """Whether the last part is full.

        With more keys, false positives become more and more frequent.
        """
        sample = self.parts[-1][:_SAMPLE_WORDS]  # keys are spread evenly over all words
        return bool(np.bitwise_count(sample).mean() > _FULL * _WORD_BITS)

    @property
    def next_part_bytes(self) -> int:
        """The memory that `grow` takes."""
        return _GROWTH * self.parts[-1].nbytes

    def grow(self) -> None:
        """Adds an empty part."""
        self.parts.append(_empty(_GROWTH * _room(self.parts[-1])))

    def add(self, hashes: Hashes) -> None:
        """Adds keys."""
        words = self.parts[-1]
        np.bitwise_or.at(words, _places(hashes, words), _bits(hashes))

    def may_contain(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Returns whether each key may have been added."""
        bits = _bits(hashes)
        found = np.zeros(len(hashes), np.bool_)
        for words in self.parts:
            found |= words[_places(hashes, words)] & bits == bits
        return found


def hash_keys(keys: Sequence[bytes]) -> Hashes:
    """Returns a 64-bit hash of each key, as in stored filters."""
    if isinstance(keys, StoredKeys) and keys.matrix is not None:
        return _hash_rows(keys.matrix)
    hashes = np.empty(len(keys), np.uint64)
    lengths = np.fromiter(map(len, keys), np.intp, len(keys))
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        joined = b"".join(keys if len(rows) == len(keys) else [keys[row] for row in rows.tolist()])
        hashes[rows] = _hash_rows(np.frombuffer(joined, np.uint8).reshape(len(rows), length))
    return hashes


def _hash_rows(matrix: npt.NDArray[np.uint8]) -> Hashes:
    count, length = matrix.shape
    words = max(1, -(-length // 8))
    padded = np.zeros((count, words * 8), np.uint8)
    padded[:, :length] = matrix
    hashes = np.full(count, length, np.uint64)
    for word in padded.view("<u8").T:
        hashes ^= word
        for mix in _MIX:
            hashes *= mix
            hashes ^= hashes >> _HALF
    return hashes


def _bits(hashes: Hashes) -> Words:
    """Returns each key's bits in its word, by its hash's lower half."""
    bits = np.zeros(len(hashes), np.uint64)
    for shift in _SHIFTS:
        bits |= np.uint64(1) << (hashes >> shift & np.uint64(_WORD_BITS - 1))
    return bits


def _places(hashes: Hashes, words: Words) -> npt.NDArray[np.intp]:
    """Returns each key's word position, by its hash's upper half."""
    return ((hashes >> _HALF) * np.uint64(len(words)) >> _HALF).astype(np.intp)


def _empty(keys: int) -> Words:
    return np.zeros(-(-keys * _BITS_PER_KEY // _WORD_BITS), np.uint64)


def _room(words: Words) -> int:
    return len(words) * _WORD_BITS // _BITS_PER_KEY
