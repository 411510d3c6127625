"""Key groups: which subtask owns which keys; pure, as in Flink.

Source: Flink's `KeyGroupRangeAssignment` and `MathUtils.murmurHash`, with exactly the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from keyscale.vocabulary import KEY_GROUPS_MAX

from ..errors import KeyGroupError
from .hashing import HashId, hash_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

KEY_GROUP_BYTES = 2

_MASK = 0xFFFFFFFF
_INT_MIN = -(2**31)


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """The contiguous key groups `start` to `end`, both inclusive."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end < KEY_GROUPS_MAX:
            raise KeyGroupError(f"{self.start} to {self.end} is not a key group range")

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Returns the key groups in both ranges, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None

    @property
    def start_key(self) -> bytes:
        """The smallest stored key of the range."""
        return self.start.to_bytes(KEY_GROUP_BYTES, "big")

    @property
    def end_key(self) -> bytes:
        """The first stored key after the range."""
        return (self.end + 1).to_bytes(KEY_GROUP_BYTES, "big")


def murmur_hash(code: int) -> int:
    """Returns Flink's `MathUtils.murmurHash`.

    It scrambles a signed 32-bit int to a non-negative one.
    """
    code = code * 0xCC9E2D51 & _MASK
    code = (code << 15 | code >> 17) & _MASK
    code = code * 0x1B873593 & _MASK
    code = (code << 13 | code >> 19) & _MASK
    code = code * 5 + 0xE6546B64 & _MASK
    code ^= 4
    code ^= code >> 16
    code = code * 0x85EBCA6B & _MASK
    code ^= code >> 13
    code = code * 0xC2B2AE35 & _MASK
    code ^= code >> 16
    signed = code - 2**32 if code >= 2**31 else code
    if signed >= 0:
        return signed
    return -signed if signed != _INT_MIN else 0


def murmur_hashes(codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Returns the `murmur_hash` of each code."""
    code = codes.astype(np.int32, copy=False).view(np.uint32) * np.uint32(0xCC9E2D51)
    code = code << np.uint32(15) | code >> np.uint32(17)
    code *= np.uint32(0x1B873593)
    code = code << np.uint32(13) | code >> np.uint32(19)
    code = code * np.uint32(5) + np.uint32(0xE6546B64)
    code ^= np.uint32(4)
    code ^= code >> np.uint32(16)
    code *= np.uint32(0x85EBCA6B)
    code ^= code >> np.uint32(13)
    code *= np.uint32(0xC2B2AE35)
    code ^= code >> np.uint32(16)
    signed = code.view(np.int32)
    return np.where(signed == np.int32(_INT_MIN), np.int32(0), np.abs(signed))


def assign_to_key_group(
    key: Any,
    max_parallelism: int,
    *,
    hash_id: HashId = HashId.SPARK,
    types: tuple[pa.DataType, ...] | None = None,
) -> int:
    """Returns the key group of one key.

    A key is a value, or a tuple of the values of several key columns.

    Args:
        key: The key. Without `types` a Python int is hashed as 64-bit.
        max_parallelism: The number of key groups.
        hash_id: The hash that the job uses.
        types: Arrow types of the key's columns.

    Raises:
        KeyGroupError: max_parallelism is out of bounds.
        UnsupportedTypeError: The key has a type without a hash.
    """
    check_max_parallelism(max_parallelism)
    values = key if isinstance(key, tuple) else (key,)
    return murmur_hash(hash_code(values, types, hash_id)) % max_parallelism


def assign_to_key_groups(hash_codes: npt.NDArray[np.int32], max_parallelism: int) -> npt.NDArray[np.int32]:
    """Returns the key group of each key, from its hash code."""
    check_max_parallelism(max_parallelism)
    return murmur_hashes(hash_codes) % np.int32(max_parallelism)


def key_group_range(max_parallelism: int, parallelism: int, index: int) -> KeyGroupRange:
    """Returns the key groups that subtask `index` of `parallelism` owns.

    Raises:
        KeyGroupError: Not 0 <= index < parallelism <= max_parallelism <= 32768.
    """
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= index < parallelism:
        raise KeyGroupError(f"subtask {index} does not exist at parallelism {parallelism}")
    start = (index * max_parallelism + parallelism - 1) // parallelism
    end = ((index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def subtask_for_key_group(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """Returns the subtask that owns a key group: `key_group_range`'s inverse."""
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= key_group < max_parallelism:
        raise KeyGroupError(f"key group {key_group} does not exist at max parallelism {max_parallelism}")
    return key_group * parallelism // max_parallelism


def check_max_parallelism(max_parallelism: int) -> None:
    """Checks that a max parallelism is 1 to 32768.

    Raises:
        KeyGroupError: The max parallelism is out of bounds.
    """
    if not 1 <= max_parallelism <= KEY_GROUPS_MAX:
        raise KeyGroupError(f"max parallelism must be 1 to {KEY_GROUPS_MAX}, not {max_parallelism}")


def check_parallelism(max_parallelism: int, parallelism: int) -> None:
    """Checks that a parallelism is 1 to max parallelism.

    Raises:
        KeyGroupError: The parallelism or the max parallelism is out of bounds.
    """
    check_max_parallelism(max_parallelism)
    if not 1 <= parallelism <= max_parallelism:
        raise KeyGroupError(f"parallelism must be 1 to max parallelism ({max_parallelism}), not {parallelism}")
