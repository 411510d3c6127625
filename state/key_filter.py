"""A Bloom filter over all keys of a family, asked and added to by whole batches.

RocksDB has a filter a file: a key that is in none of them costs one question a file, and each lookup a crossing from Python. This one
answers for a batch of keys in a few milliseconds, whatever the number of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state.stored_keys import StoredKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]
    Hashes = npt.NDArray[np.uint64]

_WORD_BITS = 64
_BITS_A_KEY = 12
_GROWTH = 4  # a new part has room for so many times as many keys as the one before it: few parts to ask
_SHIFTS = tuple(
    np.uint64(6 * place) for place in range(5)
)  # each takes six bits of a hash for the place of one bit in a word
_FULL = 1 - np.exp(
    -len(_SHIFTS) / _BITS_A_KEY
)  # the share of bits that are set when there are as many keys as there is room for
_SAMPLE_WORDS = 1 << 14
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))
_HALF = np.uint64(32)


class KeyFilter:
    """A set of keys that forgets none, and takes about one in a hundred of all others for one of its own.

    All bits of a key are in one word, so that a question costs one access to memory. The set grows by further parts, of which a key may be
    in any.

    Args:
        parts: The words of each, the oldest first; the last one is added to.
    """

    def __init__(self, parts: Sequence[Words]) -> None:
        self.parts = list(parts)

    @classmethod
    def sized(cls, keys: int) -> KeyFilter:
        """An empty one with room for so many keys."""
        return cls([_empty(keys)])

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def capacity(self) -> int:
        """How many keys there is room for."""
        return sum(map(_room, self.parts))

    @property
    def is_full(self) -> bool:
        """Whether the last part has as many keys as it has room for: with more, more and more other keys are taken for them."""
        sample = self.parts[-1][:_SAMPLE_WORDS]  # keys are spread evenly over all words
        return bool(np.bitwise_count(sample).mean() > _FULL * _WORD_BITS)

    @property
    def next_part_bytes(self) -> int:
        """What `grow` takes."""
        return _GROWTH * self.parts[-1].nbytes

    def grow(self) -> None:
        """Make room by one more part."""
        self.parts.append(_empty(_GROWTH * _room(self.parts[-1])))

    def add(self, hashes: Hashes) -> None:
        """Take keys in."""
        words = self.parts[-1]
        np.bitwise_or.at(words, _places(hashes, words), _bits(hashes))

    def may_contain(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Whether each key may have been added: True for all that were."""
        bits = _bits(hashes)
        found = np.zeros(len(hashes), np.bool_)
        for words in self.parts:
            found |= words[_places(hashes, words)] & bits == bits
        return found


def hash_keys(keys: Sequence[bytes]) -> Hashes:
    """A 64-bit hash of each key. Kept filters rely on it: it is part of their format."""
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
    """The bits of each key in its word, by the lower half of its hash."""
    bits = np.zeros(len(hashes), np.uint64)
    for shift in _SHIFTS:
        bits |= np.uint64(1) << (hashes >> shift & np.uint64(_WORD_BITS - 1))
    return bits


def _places(hashes: Hashes, words: Words) -> npt.NDArray[np.intp]:
    """The word of each key, by the upper half of its hash."""
    return ((hashes >> _HALF) * np.uint64(len(words)) >> _HALF).astype(np.intp)


def _empty(keys: int) -> Words:
    return np.zeros(-(-keys * _BITS_A_KEY // _WORD_BITS), np.uint64)


def _room(words: Words) -> int:
    return len(words) * _WORD_BITS // _BITS_A_KEY
