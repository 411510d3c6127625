"""The clock of processing time, which outlasts jumps of the host's clock.

Processing time never goes back, so one batch at a wrong time in the future would stop it until then. The clock of an
attempt therefore begins at a time that the object store's clock confirms, and goes on by a clock that counts the time
since the host's start.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from keyscale.clock import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

DISAGREEMENT_MAX_MS: Final = 300_000
"""The difference up to which two clocks agree; S3 refuses requests by clocks that differ by a quarter of an hour."""

# Unlike the monotonic clock, it also counts the time in which the host is suspended. Only Linux has it.
_SINCE_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot_ms() -> int:
    """Returns milliseconds by a clock that is never set."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


@dataclass(slots=True)
class ProcessingClock:
    """Tells an attempt's processing time.

    Attributes:
        began_ms: The processing time when the clock began.
        host_ms: Tells the time by the host's clock.
        elapsed_ms: Tells the time by a clock that is never set.
    """

    began_ms: int
    host_ms: Callable[[], int] = now_ms
    elapsed_ms: Callable[[], int] = since_boot_ms
    _began_at_ms: int = field(init=False)
    _has_warned: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._began_at_ms = self.elapsed_ms()

    def now_ms(self) -> int:
        """Returns the processing time.

        It warns once if the host's clock has been set.
        """
        processing_ms = self.began_ms + self.elapsed_ms() - self._began_at_ms
        jump_ms = self.host_ms() - processing_ms
        if abs(jump_ms) > DISAGREEMENT_MAX_MS and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the clock of this host is %d s away from the processing time, which goes on without the jump; if the"
                " clock is right now, restart the job",
                jump_ms // 1000,
            )
        return processing_ms


def beginning_ms(host_ms: int, store_ms: int | None) -> int:
    """Returns the time at which processing time begins; pure.

    It is the store's time if the two clocks contradict each other: a wrong time in the future cannot be taken back.

    Args:
        host_ms: The time by the host's clock.
        store_ms: The time by the object store's clock, if known.
    """
    if store_ms is None or abs(host_ms - store_ms) <= DISAGREEMENT_MAX_MS:
        return host_ms
    logger.warning(
        "the clock of this host is %d s away from the object store's; processing time follows the store's clock",
        (host_ms - store_ms) // 1000,
    )
    return store_ms
