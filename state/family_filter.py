"""The key filter of one family of a store, how far it goes, and whether it is of use or would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from state.key_filter import hash_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from state.key_filter import Hashes, KeyFilter

_JUDGED_LOOKUPS = 1 << 20
_SPARED_MIN = 0.25  # of the lookups; a filter that spares fewer is not worth its memory
_WATCHED_LOOKUPS = 1 << 14
_ABSENT_MIN = 0.5  # of the lookups; more than what a filter is given up for, so that none comes and goes


@dataclass(slots=True, eq=False)
class FamilyFilter:
    """Of a family's keys those below a bound, and perhaps others.

    Attributes:
        keys: All of the family's keys that are less than `covered`, and perhaps others.
        covered: The first key that may be missing in it; None if none is.
        asked: Keys below `covered` that were asked for.
        spared: How many of them are certainly not there.
    """

    keys: KeyFilter
    covered: bytes | None
    asked: int = 0
    spared: int = 0

    def possible(self, keys: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Which of these keys the family may have."""
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
        """Of keys that the family is about to get those that `keys` must have, as far as the filter goes."""
        hashes, covered = hash_keys(keys), self.covered
        return hashes if covered is None else hashes[np.fromiter((key < covered for key in keys), np.bool_, len(keys))]

    def cover(self, keys: Sequence[bytes], *, to_the_end: bool) -> None:
        """Take in the family's keys that follow `covered`, ascending; whether they are all that there are."""
        self.keys.add(hash_keys(keys))
        if to_the_end:
            self.covered = None
        elif keys:
            self.covered = keys[-1] + b"\0"

    def is_of_use(self) -> bool:
        """Whether it has spared enough of the latest lookups, or there were too few of them to tell."""
        if self.asked < _JUDGED_LOOKUPS:
            return True
        enough = self.spared >= _SPARED_MIN * self.asked
        self.asked = self.spared = 0
        return enough


@dataclass(slots=True)
class UnfilteredLookups:
    """How the latest lookups in a family without a filter went: whether one that takes its keys in would be of use.

    Attributes:
        asked: Keys that were asked for.
        absent: How many of them were not there.
    """

    asked: int = 0
    absent: int = 0

    def note(self, values: Sequence[bytes | None]) -> None:
        """Count what was found; once there is enough to tell, begin to forget what was before."""
        if self.asked >= _WATCHED_LOOKUPS:
            self.asked = self.absent = 0
        self.asked += len(values)
        self.absent += values.count(None)

    def want_filter(self) -> bool:
        """Whether enough were asked for, and most were not there."""
        return self.asked >= _WATCHED_LOOKUPS and self.absent >= _ABSENT_MIN * self.asked
