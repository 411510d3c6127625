"""The memory of the entries that a batch has read or changed."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY_BYTES = 300  # about the memory of a small entry with its key: two objects in a dict
LARGE_BYTES = 256  # at most the bytes of a small entry's key and value
_ROWS_MAX = 1 << 62
_FIRST_ROWS = 4  # of the first part of a store's first batch
_GROWTH = 32  # of a part over the previous part: the first rows may be smaller than the rest
_CHARGES = 8  # the steps in which memory is taken from the caches; small batches take none


class BatchMemory:
    """Counts the bytes of a batch's entries in all families.

    Small entries are only counted by their number, now and then: adding up their bytes would cost time for every
    record. The bytes of large entries are added up as they come. An entry that changes several times counts several
    times until `recount`.

    Attributes:
        limit_bytes: The memory that the batch may take; None: any.
        large_bytes: The bytes of large entries so far.
        column_bytes: The bytes of the columns that were read or written since `saw_rows`.
        rows_at_once: The number of rows with columns of state that fit in memory.
    """

    __slots__ = (
        "_charge",
        "_charged_bytes",
        "_full_bytes",
        "_on_full",
        "column_bytes",
        "large_bytes",
        "limit_bytes",
        "rows_at_once",
    )

    def __init__(
        self,
        limit_bytes: int | None = None,
        *,
        on_full: Callable[[], None] = lambda: None,
        charge: Callable[[int], None] | None = None,
    ) -> None:
        """Creates the counts of one backend.

        Args:
            limit_bytes: The limit.
            on_full: Called as soon as large entries alone exceed the limit.
            charge: Takes this many more bytes from the process's caches, or gives them back (negative).
        """
        self.limit_bytes = limit_bytes
        self.large_bytes = 0
        self.column_bytes = 0
        self.rows_at_once = _ROWS_MAX if limit_bytes is None else _FIRST_ROWS
        self._full_bytes: float = inf if limit_bytes is None else limit_bytes
        self._on_full = on_full
        self._charge = charge
        self._charged_bytes = 0

    def add_large(self, size_bytes: int) -> None:
        """Counts the bytes of large entries."""
        self.large_bytes += size_bytes
        if self.large_bytes > self._full_bytes:
            self._on_full()

    def add_many(self, count: int, size_bytes: int) -> None:
        """Counts entries with this total size."""
        more = size_bytes - LARGE_BYTES * count
        if more > 0:
            self.add_large(more)

    def used_bytes(self, small_bytes: int) -> int:
        """Estimates the memory of the batch.

        `small_bytes` is the memory of its entries if all were small.
        """
        used = self.large_bytes + small_bytes
        self._charge_for(used)
        return used

    def recount(self, large_bytes: int) -> None:
        """Sets the bytes of the present large entries, each counted once."""
        self.large_bytes = large_bytes

    def is_full_with(self, used_bytes: int) -> bool:
        """Returns whether something must be dropped."""
        return used_bytes > self._full_bytes

    def is_half_full_with(self, changed_bytes: int) -> bool:
        """Returns whether changes are worth a spill."""
        return self.limit_bytes is not None and changed_bytes > self.limit_bytes // 2

    def expect(self, used_bytes: int) -> None:
        """Begins to fill up again.

        If too little could be dropped, the memory is full only after it has grown considerably.
        """
        if self.limit_bytes is not None:
            self._full_bytes = self.limit_bytes if used_bytes < self.limit_bytes else used_bytes + self.limit_bytes // 4

    def records_until_full(self, used_bytes: int, grown_bytes: int, records: int) -> float:
        """Estimates how many more records use up half of the rest.

        It assumes records like the latest.
        """
        if grown_bytes <= 0 or not records:
            return inf
        return max(1, (self._full_bytes - used_bytes) * records / (2 * grown_bytes))

    def saw_rows(self, rows: int) -> None:
        """Ends a part of a batch, and sizes the next part.

        The next part's columns may take an eighth of the memory.
        """
        if not rows:
            return
        if self.limit_bytes is not None:
            fit = self.limit_bytes * rows // (8 * max(1, self.column_bytes))
            self.rows_at_once = max(1, min(fit, _GROWTH * self.rows_at_once))
        self.column_bytes = 0

    def rows_ahead(self, rows: int, taken_bytes: int) -> int:
        """Returns how many rows' state to read ahead.

        It is given the bytes that the large entries of some rows have taken, and may use a quarter of the memory. If
        entries were dropped meanwhile, they were too large to read any ahead.
        """
        if self.limit_bytes is None or taken_bytes == 0:
            return _ROWS_MAX
        return max(1, self.limit_bytes * rows // (4 * taken_bytes)) if taken_bytes > 0 else 1

    def release(self) -> None:
        """Gives all of the memory back."""
        self.large_bytes = 0
        self.expect(0)
        self._charge_for(0)

    def _charge_for(self, used_bytes: int) -> None:
        if self._charge is None or self.limit_bytes is None:
            return
        step = max(1, self.limit_bytes // _CHARGES)
        wanted = min(used_bytes, self.limit_bytes) // step * step
        if wanted != self._charged_bytes:
            self._charge(wanted - self._charged_bytes)
            self._charged_bytes = wanted
