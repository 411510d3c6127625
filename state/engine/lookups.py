"""Lookups of many keys, split over several threads.

The threads wait for disks without Python's global lock.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Values = list[bytes | None]

_KEYS_PER_READ = 512  # few enough for the processor's cache: with more, a lookup takes up to three times as long
_KEYS_PER_THREAD_MIN = 1024  # takes some milliseconds; passing them to a thread takes a tenth of a millisecond


class Lookups:
    """The threads for large lookups in a store, started at first use.

    Args:
        threads: The number of threads that share a lookup, including the caller's.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._others = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="lookup")

    def get(self, read: Callable[[list[bytes]], Values], keys: list[bytes]) -> Values:
        """Returns the values that `read` returns for keys, in their order.

        Args:
            read: Returns the values of some keys; called from several threads.
            keys: Best sorted, because neighbours then share blocks.

        Raises:
            Exception: The exception of `read`.
        """
        parts = max(1, min(self._threads, len(keys) // _KEYS_PER_THREAD_MIN))
        size = -(-len(keys) // parts)
        others = [
            self._others.submit(_read_in_steps, read, keys[first : first + size])
            for first in range(size, len(keys), size)
        ]
        values = _read_in_steps(read, keys[:size])
        for other in others:
            values += other.result()
        return values

    def close(self) -> None:
        """Ends the threads after their reads."""
        self._others.shutdown(cancel_futures=True)


def _read_in_steps(read: Callable[[list[bytes]], Values], keys: list[bytes]) -> Values:
    values: Values = []
    for first in range(0, len(keys), _KEYS_PER_READ):
        values += read(keys[first : first + _KEYS_PER_READ])
    return values
