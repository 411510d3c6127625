"""Waiting for conditions, so that no test sleeps for a guessed time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Observed = TypeVar("Observed")


def wait_until(
    observe: Callable[[], Observed], timeout: float = 60.0, *, what: str = "the condition", poll: float = 0.05
) -> Observed:
    """Polls `observe` until it returns something truthy and returns that.

    Args:
        observe: Looks at the system under test. An exception that it raises ends the wait at once.
        timeout: Seconds until the wait is given up.
        what: What is waited for, as it should read in the failure.
        poll: Seconds between two looks.

    Raises:
        AssertionError: The condition did not hold in time; the message shows what was seen last.
    """
    deadline = time.monotonic() + timeout
    while True:
        seen = observe()
        if seen:
            return seen
        if time.monotonic() > deadline:
            message = f"waited {timeout:.0f} s for {what}; last seen: {seen!r}"
            raise AssertionError(message)
        time.sleep(poll)
