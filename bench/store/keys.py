"""Keys to measure with, and the key groups that Spark would compute.

They are columns of 64-bit integers or UUID strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from keyscale.state.keys.hashing import HashId, hash_codes
from keyscale.state.keys.key_groups import assign_to_key_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

MAX_PARALLELISM = 128
BATCH_KEYS = 100_000
DUPLICATE_SHARE = 0.1
SEED = 1
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A batch of keys, with their numbers and key groups."""

    keys: pa.Array
    numbers: npt.NDArray[np.uint64]
    key_groups: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, first: int, end: int) -> KeyColumn:
        """Returns the keys from `first` to before `end`."""
        return KeyColumn(self.keys[first:end], self.numbers[first:end], self.key_groups[first:end])

    def beyond(self, number: int) -> list[bool]:
        """Returns whether each key is after the first `number` of the series."""
        return [bool(other >= number) for other in self.numbers]


def batches_of_keys(first: int, end: int, *, uuids: bool = False, batch_keys: int = BATCH_KEYS) -> Iterator[KeyColumn]:
    """Yields keys number `first` to `end` of an endless series.

    Nine in ten are new; the rest were seen earlier. The series does not depend on the cuts, so that one run can prepare
    state that another continues.
    """
    for start in range(first, end, batch_keys):
        numbers = np.arange(start, min(start + batch_keys, end), dtype=np.uint64)
        random = np.random.default_rng((SEED, start))
        again = random.random(len(numbers)) < DUPLICATE_SHARE
        seen = (numbers * random.random(len(numbers))).astype(np.uint64)
        yield key_column(np.where(again, seen, numbers), uuids=uuids)


def key_column(numbers: npt.NDArray[np.uint64], *, uuids: bool = False) -> KeyColumn:
    """Returns the distinct keys of these numbers.

    They are spread evenly over all 64-bit integers, or over all UUIDs.
    """
    low = _scramble(numbers)
    keys = pa.array(_uuid_strings(_scramble(low), low)) if uuids else pa.array(low.view(np.int64))
    return KeyColumn(keys, numbers, assign_to_key_groups(hash_codes([keys], HashId.SPARK), MAX_PARALLELISM))


def _scramble(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Applies the finalizer of SplitMix64, one to one on 64-bit integers."""
    with np.errstate(over="ignore"):
        z = numbers * _MIX + _MIX
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _uuid_strings(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> list[str]:
    pairs = zip(high.tolist(), low.tolist(), strict=True)
    digits = (f"{a:016x}{b:016x}" for a, b in pairs)
    return [f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}" for d in digits]
