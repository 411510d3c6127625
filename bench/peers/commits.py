"""The times of a running job's commits."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from bench.peers.paced_job import ChangeFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMMIT_SECONDS = 600.0
COMMIT_POLL_SECONDS = 0.01
COMMITS_AFTER = 3


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


def longest_wait_ms(act: Callable[[], object], commits: Callable[[], int], following: int = COMMITS_AFTER) -> float:
    """Acts, and measures the longest wait for a commit after it.

    The first wait begins with the act. A commit that was made during the act does not end it. One that was under way
    may end it, so the waits for the next ones count, too.

    Args:
        act: Is called once.
        commits: Returns the number of commits until now.
        following: The number of commits to wait for.

    Raises:
        ChangeFailedError: A commit did not come.
    """
    last = time.monotonic()
    act()
    known, longest = commits(), 0.0
    for _ in range(following):
        while (now_known := commits()) <= known:
            if time.monotonic() - last > COMMIT_SECONDS:
                raise ChangeFailedError(f"no commit within {COMMIT_SECONDS:.0f} s")
            time.sleep(COMMIT_POLL_SECONDS)
        now = time.monotonic()
        known, longest, last = now_known, max(longest, now - last), now
    return 1000 * longest


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
