"""Rate limits: token buckets, one per sender, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SENDERS_MAX = 10_000


class RateLimit:
    """Allows each sender `burst` calls at once, then `per_second` per second.

    Each process has its own buckets, so each replica counts separately. With too many senders, the least recently seen
    senders are forgotten, and begin again with a full bucket.
    """

    def __init__(
        self,
        *,
        per_second: float,
        burst: float,
        clock: Callable[[], float] = time.monotonic,
        senders_max: int = SENDERS_MAX,
    ) -> None:
        """Makes a limit.

        Args:
            per_second: How much a bucket gets back each second; 0: without limit.
            burst: How much a full bucket holds, at least 1.
            clock: The time in seconds; never goes back.
            senders_max: Maximum number of buckets.
        """
        self._per_second = per_second
        self._burst = max(burst, 1.0)
        self._clock = clock
        self._senders_max = senders_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the remaining amount, and its time
        self._lock = threading.Lock()

    def take(self, sender: str) -> float:
        """Takes 1 from the sender's bucket.

        Returns:
            0 if the bucket had at least 1; else the seconds until it has 1 again, and nothing was taken.
        """
        if self._per_second == 0:
            return 0.0
        with self._lock:
            now = self._clock()
            left = self._left(sender, now)
            wait_s = 0.0 if left >= 1 else (1 - left) / self._per_second
            self._keep(sender, left - 1 if wait_s == 0 else left, now)
            return wait_s

    def charge(self, sender: str, amount: float) -> None:
        """Takes an amount that is known only afterwards.

        A bucket may go into debt.
        """
        with self._lock:
            now = self._clock()
            self._keep(sender, self._left(sender, now) - amount, now)

    def wait_s(self, sender: str) -> float:
        """Returns the seconds until the sender's bucket has 1; takes nothing."""
        if self._per_second == 0:
            return 0.0
        with self._lock:
            left = self._left(sender, self._clock())
        return 0.0 if left >= 1 else (1 - left) / self._per_second

    def _keep(self, sender: str, left: float, now: float) -> None:
        self._buckets[sender] = (left, now)
        self._buckets.move_to_end(sender)
        if len(self._buckets) > self._senders_max:
            self._buckets.popitem(last=False)

    def _left(self, sender: str, now: float) -> float:
        left, then = self._buckets.get(sender, (self._burst, now))
        return min(self._burst, left + (now - then) * self._per_second)


class Rates:
    """The limits of one control plane.

    Attributes:
        per_user: Requests of each user.
        per_address: Requests from each address, of any user.
        failures: Requests from each address without a valid token, sign-ins among them.
        refusals: Refused requests that become events, from anywhere: they cannot fill the database.
        reports_ms: Milliseconds of processor time that the reports of each job's drivers take: a fifth of a processor.
    """

    def __init__(self, *, per_user: int, per_address: int, failures_per_minute: int) -> None:
        """Makes the limits.

        Each bucket holds five seconds' requests, or a minute's failures.

        Args:
            per_user: Requests a second of a user; 0: without limit.
            per_address: Requests a second from an address; 0: without limit.
            failures_per_minute: Failures a minute from an address; 0: without limit.
        """
        self.per_user = RateLimit(per_second=per_user, burst=5 * per_user)
        self.per_address = RateLimit(per_second=per_address, burst=5 * per_address)
        self.failures = RateLimit(per_second=failures_per_minute / 60, burst=failures_per_minute)
        self.refusals = RateLimit(per_second=5, burst=500)
        self.reports_ms = RateLimit(per_second=200, burst=4000)
