"""`./keyscale bench batches`: the cost of small and empty micro-batches.

It runs beside Spark's own stateful operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.dedup_input import FILES_PER_BATCH, DedupInput, check_output, dedup_input
from bench.measure import Contender, Rounds, measure
from bench.peers.task import WARM_UP_SHARE
from bench.table import Table, count, times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

WARM = "Keyscale"
COLD = "Keyscale, state closed after each batch"
SPARK = "Spark dropDuplicates"
CHECKPOINT_INTERVAL_MS = 10_000


@dataclass(frozen=True, slots=True)
class SmallBatchSizes:
    """The size of the measurement.

    Attributes:
        batches: Micro-batches per run.
        records: Records of a small batch.
        rounds: The number of runs of each contender.
        cores: The cores of each contender; also the parallelism.
    """

    batches: int
    records: int
    rounds: int
    cores: int


def run_small_batches(root: Path, sizes: SmallBatchSizes, say: Callable[[str], None]) -> list[Table]:
    """Measures batches of a few records, and empty batches between two others."""
    small = dedup_input(root / "inputs", sizes.records * sizes.batches, sizes.batches)
    empty = dedup_input(root / "inputs", 2 * sizes.records, sizes.batches, only_ends=True)
    warm = sizes.batches - math.ceil(WARM_UP_SHARE * sizes.batches)
    tables = []
    for title, files, records_a_batch in (
        (f"batches of {sizes.records} records", small, sizes.records),
        ("batches without a record, but for the first and the last", empty, sizes.records / (sizes.batches - 1)),
    ):
        say(title)
        rounds = measure(_contenders(files, sizes), sizes.rounds, root / "work", sizes.cores, say)
        tables.append(_table(f"{sizes.batches} {title}; median of {len(rounds)}", rounds, records_a_batch))
    say(f"counted: {warm} and {sizes.batches - 1} batches, the first ones left out")
    return tables


def _table(title: str, rounds: Rounds, records_a_batch: float) -> Table:
    table = Table(title, ("contender", "ms per batch", "CPU s of the run", "time over Spark's"))
    for name in rounds.contenders():
        table.add(
            name,
            count(1000 * records_a_batch / rounds.median(name, "warm_rate")),
            count(rounds.median(name, "cpu_seconds")),
            times(rounds.ratio(SPARK, name, "warm_rate")),
        )
    return table


def _contenders(files: DedupInput, sizes: SmallBatchSizes) -> Sequence[Contender]:
    task: dict[str, Any] = {
        "input": files.folder,
        "events": files.events,
        "files_per_batch": FILES_PER_BATCH,
        "cores": sizes.cores,
        "checkpoint_interval_ms": CHECKPOINT_INTERVAL_MS,
    }
    ours = {**task, "form": "batch"}
    checked = _checked(files)
    return (
        Contender(WARM, "bench.peers.keyscale", ours, check=checked("batch=*/part-*.parquet")),
        Contender(COLD, "bench.peers.keyscale", {**ours, "warm_idle_ms": 0}, check=checked("batch=*/part-*.parquet")),
        Contender(SPARK, "bench.peers.spark_drop_duplicates", task, check=checked("part-*.parquet")),
    )


def _checked(files: DedupInput) -> Callable[[str], Callable[[Mapping[str, Any], Path], None]]:
    def output(pattern: str) -> Callable[[Mapping[str, Any], Path], None]:
        return lambda _answer, folder: check_output(files, sorted((folder / "output").glob(pattern)))

    return output
