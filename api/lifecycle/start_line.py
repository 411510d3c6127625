"""Decides which starts of drivers may begin on a host. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TOGETHER_MS = 60_000
"""Starts that were requested in the same minute count as requested together, as after a reboot of the host."""

StartKey = tuple[str, int]
"""The job and the number of an attempt."""


@dataclass(frozen=True, slots=True)
class WantedStart:
    """A start that waits for its turn.

    Attributes:
        job_id: The job.
        attempt: The attempt to launch.
        wanted_at_ms: When the attempt was created.
        job_created_at_ms: When the job was created.
        is_down: Whether the job waits for this start; false: the job runs while another driver warms up beside it.
    """

    job_id: str
    attempt: int
    wanted_at_ms: int
    job_created_at_ms: int
    is_down: bool

    @property
    def key(self) -> StartKey:
        return self.job_id, self.attempt

    @property
    def rank(self) -> tuple[int, bool, int, str, int]:
        """The order of starts: first come, first served.

        Of starts that were requested together, jobs that are down come first, and older jobs before younger ones. So
        every start waits for a limited number of others, however often other jobs are started again.
        """
        together = self.wanted_at_ms // TOGETHER_MS
        return together, not self.is_down, self.job_created_at_ms, self.job_id, self.attempt


def places_of(waiting: Iterable[WantedStart], *, begun: int, at_once: int) -> dict[StartKey, int]:
    """Returns the place of each waiting start; 0: the start may begin.

    Args:
        waiting: The starts that wait for their turn.
        begun: The starts that have begun and have not ended.
        at_once: How many starts the host carries out at once.
    """
    free = max(0, at_once - begun)
    line = sorted(waiting, key=lambda start: start.rank)
    return {start.key: max(0, index - free) for index, start in enumerate(line, start=1)}
