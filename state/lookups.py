"""Lookups of many keys at once, shared by several threads: reads of blocks wait for disks, and leave the interpreter's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Values = list[bytes | None]

_KEYS_AT_A_TIME = 512  # so that what is looked up stays in the processor's cache: more take up to three times as long
_KEYS_A_THREAD = 1024  # at least: some milliseconds, against the tenth of one that handing them over takes


class Lookups:
    """The threads of one store's large lookups; they begin at the first of these.

    Args:
        threads: How many share a lookup, the caller's own among them.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._others = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="lookup")

    def get(self, read: Callable[[list[bytes]], Values], keys: list[bytes]) -> Values:
        """What `read`, which any thread may call, gives for these keys, in their order. Keys that are neighbours share blocks if sorted.

        Raises:
            Exception: What `read` raised.
        """
        parts = max(1, min(self._threads, len(keys) // _KEYS_A_THREAD))
        size = -(-len(keys) // parts)
        others = [
            self._others.submit(_in_steps, read, keys[first : first + size]) for first in range(size, len(keys), size)
        ]
        values = _in_steps(read, keys[:size])
        for other in others:
            values += other.result()
        return values

    def close(self) -> None:
        """End the threads, and wait for what they read."""
        self._others.shutdown(cancel_futures=True)


def _in_steps(read: Callable[[list[bytes]], Values], keys: list[bytes]) -> Values:
    values: Values = []
    for first in range(0, len(keys), _KEYS_AT_A_TIME):
        values += read(keys[first : first + _KEYS_AT_A_TIME])
    return values
