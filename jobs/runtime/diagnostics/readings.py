"""Readings with a common time limit.

A reading can hang: a JVM that stands still answers no call. It is then left behind, in a thread that keeps no process
from ending.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Reading(threading.Thread):
    """A text that is read in a thread of its own."""

    def __init__(self, name: str, read: Callable[[], str]) -> None:
        super().__init__(name=f"diagnostic of {name}", daemon=True)
        self._read = read
        self.text = ""

    def run(self) -> None:
        try:
            self.text = self._read() or "(empty)"
        except Exception as error:  # noqa: BLE001 - whatever fails is the answer
            self.text = f"(not read: {type(error).__name__}: {error})"


def read_within(seconds: float, reads: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """Reads texts at the same time.

    A text that fails or takes too long is replaced by the reason.
    """
    until = time.monotonic() + seconds
    readings = [_Reading(name, read) for name, read in reads.items()]
    for reading in readings:
        reading.start()
    for reading in readings:
        reading.join(max(0.0, until - time.monotonic()))
    return {
        name: reading.text or f"(no answer within {seconds:g} s)" for name, reading in zip(reads, readings, strict=True)
    }
