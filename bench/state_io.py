"""`./keyscale bench state-io`: a bootstrap and a full read, beside plain files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.measure import Contender, measure
from bench.table import Table, count, mebibytes, percent, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHILD = "bench.store.state_io"
PAIRS = {
    "Bootstrap": ("savepoint", "state_io.write, a savepoint", "sorted files", "the same sorted files alone"),
    "Full read": ("read", "StateReader, a savepoint", "parquet", "the same rows from Parquet"),
}


@dataclass(frozen=True, slots=True)
class StateIoSizes:
    """The size of the measurement.

    Attributes:
        keys: Keys in state.
        rounds: The number of runs.
        cores: The cores of each run.
    """

    keys: int
    rounds: int
    cores: int


def run_state_io(root: Path, sizes: StateIoSizes, say: Callable[[str], None]) -> Iterator[Table]:
    """Measures a bootstrap and a full read, one table per part."""
    for title, (action, name, other_action, other) in PAIRS.items():
        contenders = [
            Contender(each, CHILD, {"action": what, "keys": sizes.keys})
            for each, what in ((name, action), (other, other_action))
        ]
        rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
        table = Table(
            f"{title} of {sizes.keys:,} keys, 64-bit keys and values",
            ("contender", "keys/s", "beside plain", "spread", "keys per CPU s", "beside plain", "peak memory"),
        )
        for each in (name, other):
            table.add(
                each,
                count(rounds.median(each, "rate")),
                times(rounds.ratio(each, other, "rate")),
                percent(rounds.spread(each, "rate")),
                count(rounds.median(each, "cpu_rate")),
                times(rounds.ratio(each, other, "cpu_rate")),
                mebibytes(rounds.median(each, "memory_peak_bytes")),
            )
        yield table
