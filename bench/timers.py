"""`./keyscale bench timers`: the delay of timers' output on idle input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.measure import Contender, measure
from bench.table import Table, count, percent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OURS = "Keyscale, process_element and on_timer"
FIGURES = ("p50_ms", "p99_ms", "max_ms")


@dataclass(frozen=True, slots=True)
class TimerSizes:
    """The size of the measurement.

    Attributes:
        timers: The number of timers, one per key.
        apart_ms: The time between two timers.
        rounds: The number of runs.
        cores: The cores of each run; also the parallelism.
    """

    timers: int
    apart_ms: int
    rounds: int
    cores: int


def run_timers(root: Path, sizes: TimerSizes, say: Callable[[str], None]) -> list[Table]:
    """Measures processing-time timers on idle input, from the first on."""
    options = {"timers": sizes.timers, "apart_ms": sizes.apart_ms, "cores": sizes.cores}
    rounds = measure(
        [Contender(OURS, "bench.peers.timers_keyscale", options)], sizes.rounds, root / "work", sizes.cores, say
    )
    table = Table(
        f"{sizes.timers} timers, one each {sizes.apart_ms} ms, on idle input; from its moment to readers of the sink; "
        f"median of {len(rounds)}",
        ("contender", "p50 ms", "p99 ms", "worst ms", "spread of p50"),
    )
    cells = [count(rounds.median(OURS, figure)) for figure in FIGURES]
    table.add(OURS, *cells, percent(rounds.spread(OURS, "p50_ms")))
    table.notes.append("target: within 1,000 ms")
    return [table]
