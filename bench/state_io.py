"""`./keyscale bench state-io`: a bootstrap and reads, beside plain files and Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.measure import Contender, measure
from bench.table import Table, count, decimal, mebibytes, percent, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHILD = "bench.store.state_io"
SOURCE = "Data source keyscale-state, a savepoint"
SOURCE_CHILD = "bench.store.source_read"
SPARK_CHILD = "bench.store.spark_state_read"
OURS = "StateReader, a savepoint"
SPARKS = "Spark's state reader, 64-bit keys and counts"
PAIRS = {
    "Bootstrap": ("savepoint", "state_io.write, a savepoint", "sorted files", "the same sorted files alone"),
    "Full read": ("read", OURS, "parquet", "the same rows from Parquet"),
}


@dataclass(frozen=True, slots=True)
class StateIoSizes:
    """The size of the measurement.

    Attributes:
        keys: Keys in state.
        spark_keys: Keys in state beside Spark's reader, which a query of Spark has to write first.
        rounds: The number of runs.
        cores: The cores of each run.
    """

    keys: int
    spark_keys: int
    rounds: int
    cores: int


def run_state_io(root: Path, sizes: StateIoSizes, say: Callable[[str], None]) -> Iterator[Table]:
    """Measures a bootstrap and reads, one table per part."""
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
    yield _beside_spark(root, sizes, say)
    yield _one_key(root, sizes, say)


def _beside_spark(root: Path, sizes: StateIoSizes, say: Callable[[str], None]) -> Table:
    """Measures a full read beside the state reader of Spark."""
    contenders = [
        Contender(OURS, CHILD, {"action": "read", "keys": sizes.spark_keys}),
        Contender(SOURCE, SOURCE_CHILD, {"keys": sizes.spark_keys, "cores": sizes.cores}),
        Contender(SPARKS, SPARK_CHILD, {"keys": sizes.spark_keys, "cores": sizes.cores}),
    ]
    rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
    table = Table(f"Full read of {sizes.spark_keys:,} keys", ("contender", "keys/s", "beside Spark", "spread"))
    for each in (OURS, SOURCE, SPARKS):
        cells = rounds.median(each, "rate"), rounds.ratio(each, SPARKS, "rate"), rounds.spread(each, "rate")
        table.add(each, count(cells[0]), times(cells[1]), percent(cells[2]))
    return table


def _one_key(root: Path, sizes: StateIoSizes, say: Callable[[str], None]) -> Table:
    """Measures the first read and later reads of single keys."""
    contender = Contender(OURS, CHILD, {"action": "one key", "keys": sizes.keys})
    rounds = measure([contender], sizes.rounds, root / "work", sizes.cores, say)
    table = Table(f"Read of one key of {sizes.keys:,}", ("contender", "first read ms", "then p50 ms", "then p99 ms"))
    table.add(OURS, *(decimal(rounds.median(OURS, f"{each}_ms"), 2) for each in ("first", "p50", "p99")))
    return table
