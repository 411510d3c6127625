"""The times of a running job's commits."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from bench.peers.paced_job import COMMIT_POLL_SECONDS, COMMIT_SECONDS, ChangeFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Pause:
    """The longest time without a commit around a request.

    Attributes:
        pause_ms: From the last commit before to the first one after.
        done_ms: From the request to the first commit after.
    """

    pause_ms: float
    done_ms: float


def longest_pause(times: Sequence[float], request: float) -> Pause:
    """Returns the longest time between two commits that ends after a request."""
    begin, end = max((pair for pair in pairwise(times) if pair[1] > request), key=lambda pair: pair[1] - pair[0])
    return Pause(1000 * (end - begin), 1000 * (end - request))


def ordinary_gap_ms(times: Sequence[float]) -> float:
    """Returns the median time between two commits."""
    return 1000 * statistics.median(end - begin for begin, end in pairwise(times))


class Commits:
    """Watches the number of a job's commits.

    Attributes:
        times: The time of each commit.
    """

    def __init__(self, number: Callable[[], int]) -> None:
        self.times: list[float] = []
        self._number = number
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch_until_ended, name="commits", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def wait_for(self, more: int) -> None:
        """Waits for so many more commits.

        Raises:
            ChangeFailedError: A commit did not come.
        """
        wanted = len(self.times) + more
        give_up = time.monotonic() + COMMIT_SECONDS
        while len(self.times) < wanted:
            if time.monotonic() > give_up:
                raise ChangeFailedError(f"{more} commits did not come within {COMMIT_SECONDS:.0f} s")
            time.sleep(COMMIT_POLL_SECONDS)

    def _watch_until_ended(self) -> None:
        known = 0
        while not self._ended.wait(COMMIT_POLL_SECONDS):
            if (number := self._number()) > known:
                self.times.append(time.monotonic())
                known = number
