"""The 64-bit hash that replaces keys in state.

The hash is stored, so it never changes: a new hash gets a new version.

Version 1 is XXH64, with seed 42, of the stored form of the key's columns (`KeySerializer`), for any type that can be a
key. Spark's `xxhash64` of a binary column of those bytes gives the same number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..serializers.key_columns import encoded_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from ..serializers.key_columns import EncodedColumn

    Hashes = npt.NDArray[np.uint64]

KEY_HASH_VERSION: Final = 1
SEED: Final = 42
_STRIPE_BYTES = 32
_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
_WORD = 1 << 64


def key_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """Returns the hash of each row's key.

    The keys are given as one array per key column.

    Raises:
        UnsupportedTypeError: A column's type cannot be a key.
        SerializationError: A value does not fit its type.
    """
    return xxh64_rows(encoded_keys(columns), SEED)


def xxh64_rows(column: EncodedColumn, seed: int) -> Hashes:
    """Returns XXH64 of each row of a column of byte strings.

    Rows of the same length are hashed together.
    """
    if column.width is not None:
        return xxh64_matrix(column.matrix(), seed)
    lengths = column.lengths
    order = np.argsort(lengths, kind="stable")
    hashes = np.empty(len(column), np.uint64)
    for rows in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        if len(rows):
            within = np.arange(int(lengths[rows[0]]))
            hashes[rows] = xxh64_matrix(column.data[column.offsets[rows][:, None] + within], seed)
    return hashes


def xxh64_matrix(rows: npt.NDArray[np.uint8], seed: int) -> Hashes:
    """Returns XXH64 of each row of a matrix of bytes."""
    count, length = rows.shape
    at = 0
    if length >= _STRIPE_BYTES:
        lanes = [np.full(count, start, np.uint64) for start in _lane_starts(seed)]
        while at + _STRIPE_BYTES <= length:
            lanes = [_round(lane, _words(rows, at + 8 * place, 8)) for place, lane in enumerate(lanes)]
            at += _STRIPE_BYTES
        code = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
        for lane in lanes:
            code = (code ^ _round(np.zeros(count, np.uint64), lane)) * _PRIME_1 + _PRIME_4
    else:
        code = np.full(count, (seed + int(_PRIME_5)) % _WORD, np.uint64)
    return _avalanched(_with_rest(code + np.uint64(length), rows, at))


def _with_rest(code: Hashes, rows: npt.NDArray[np.uint8], at: int) -> Hashes:
    """Adds each row's rest, after the last whole stripe, to the hash."""
    length = rows.shape[1]
    zeros = np.zeros(len(rows), np.uint64)
    while at + 8 <= length:
        code = _rotated(code ^ _round(zeros, _words(rows, at, 8)), 27) * _PRIME_1 + _PRIME_4
        at += 8
    if at + 4 <= length:
        code = _rotated(code ^ _words(rows, at, 4) * _PRIME_1, 23) * _PRIME_2 + _PRIME_3
        at += 4
    for place in range(at, length):
        code = _rotated(code ^ rows[:, place].astype(np.uint64) * _PRIME_5, 11) * _PRIME_1
    return code


def _lane_starts(seed: int) -> list[int]:
    one, two = int(_PRIME_1), int(_PRIME_2)
    return [(seed + one + two) % _WORD, (seed + two) % _WORD, seed % _WORD, (seed - one) % _WORD]


def _words(rows: npt.NDArray[np.uint8], at: int, width: int) -> Hashes:
    """Returns little-endian numbers of 4 or 8 bytes from each row."""
    return np.ascontiguousarray(rows[:, at : at + width]).view(f"<u{width}").ravel().astype(np.uint64)


def _round(lane: Hashes, words: Hashes) -> Hashes:
    return _rotated(lane + words * _PRIME_2, 31) * _PRIME_1


def _rotated(words: Hashes, bits: int) -> Hashes:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)


def _avalanched(code: Hashes) -> Hashes:
    code = (code ^ code >> np.uint64(33)) * _PRIME_2
    code = (code ^ code >> np.uint64(29)) * _PRIME_3
    return code ^ code >> np.uint64(32)
