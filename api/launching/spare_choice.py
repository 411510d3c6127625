"""Decides which spare drivers a host starts and ends. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .driver_start import StartPattern

BESIDE_HEAP_BYTES = 768 << 20
"""The memory of an idle driver beside its heap: Java's classes and threads, Python's processes."""
WARM_WITHIN_S = 300.0
FAILURE_PAUSE_S = 60.0
"""The pause after a spare that has ended by itself; it doubles with each further one, up to `FAILURE_PAUSE_S_MAX`."""
FAILURE_PAUSE_S_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class SpareFacts:
    """A spare that waits or warms up."""

    name: str
    pattern: StartPattern
    is_ready: bool
    age_s: float


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host has, and what it may need.

    Attributes:
        wanted: The patterns of likely starts, the likeliest first.
        spares: Its spares.
        starts: How many drivers start, or wait for their turn, or have not committed a batch yet.
        heap_bytes: The heap of a driver.
        free_bytes: The memory that programs can still get.
        failures: How many spares in a row have ended by themselves.
        failed_s: The time since the last one did.
    """

    wanted: Sequence[StartPattern]
    spares: Sequence[SpareFacts]
    starts: int
    heap_bytes: int
    free_bytes: int
    failures: int = 0
    failed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StartSpare:
    """A spare with this pattern is started."""

    pattern: StartPattern


@dataclass(frozen=True, slots=True)
class EndSpare:
    """A spare is ended."""

    name: str
    reason: str


def next_spare_step(facts: HostFacts, count: int) -> StartSpare | EndSpare | None:
    """Returns the next step for a host's spares, if any.

    Args:
        facts: The host's facts.
        count: How many spares it shall have.
    """
    wanted = Counter(facts.wanted[:count])
    for spare in facts.spares:
        if not spare.is_ready and spare.age_s > WARM_WITHIN_S:
            return EndSpare(spare.name, "it does not become warm")
    for spare in facts.spares:
        if not wanted[spare.pattern]:
            return EndSpare(spare.name, "no job is likely to take it")
        wanted[spare.pattern] -= 1
    size_bytes = facts.heap_bytes + BESIDE_HEAP_BYTES
    if facts.spares and facts.free_bytes < size_bytes // 2:
        return EndSpare(facts.spares[-1].name, "the host is short of memory")
    # A driver that replaces a running one must fit beside the spare.
    has_room = facts.free_bytes >= 2 * size_bytes
    is_paused = facts.failures > 0 and facts.failed_s < failure_pause_s(facts.failures)
    is_busy = facts.starts > 0 or any(not spare.is_ready for spare in facts.spares)
    missing = next((pattern for pattern in wanted if wanted[pattern] > 0), None)
    return StartSpare(missing) if missing is not None and has_room and not is_paused and not is_busy else None


def failure_pause_s(failures: int) -> float:
    """Returns the pause after so many spares that ended by themselves."""
    return float(min(FAILURE_PAUSE_S * 2 ** min(failures - 1, 10), FAILURE_PAUSE_S_MAX))


def likely_starts(running: Sequence[StartPattern], plain: StartPattern | None, count: int) -> list[StartPattern]:
    """Returns the patterns that spares should have.

    Each pattern of a running job comes first, the newest first, then the pattern of a job without settings. The first
    pattern fills the rest.

    Args:
        running: The patterns of the running jobs, the newest start first.
        plain: The pattern of a job without settings; None: jobs have users of their own.
        count: How many spares the host shall have.
    """
    distinct = list(dict.fromkeys([*running, *([] if plain is None else [plain])]))
    return (distinct + distinct[:1] * count)[:count]
