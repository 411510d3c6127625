"""`./keyscale bench rescale`: live rescales beside new drivers and peers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.dedup_input import check_rows
from bench.environments import flink_options
from bench.measure import Contender, measure
from bench.peers.flink_session import CHECKPOINT_INTERVAL_MS
from bench.peers.rescale_spark import TRIGGER
from bench.scale import TTL_HOURS, filled_savepoint
from bench.table import Table, count, mebibytes, percent, times
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from keyscale.vocabulary import RescaleMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PARALLELISMS = (4, 1, 2)
FLINK_SAVEPOINT, FLINK_ADAPTIVE, SPARK = "Flink, stop with savepoint", "Flink, adaptive", "Spark, repartition"
OURS = tuple(mode.value for mode in RescaleMode)
CONTENDERS = (*OURS, FLINK_SAVEPOINT, FLINK_ADAPTIVE, SPARK)


@dataclass(frozen=True, slots=True)
class RescaleSizes:
    """The size of the measurement.

    Attributes:
        keys: The number of keys in state; 0 begins with an empty state.
        rounds: The number of runs of each way.
        cores: The cores of each run.
    """

    keys: int
    rounds: int
    cores: int


def run_rescale(root: Path, sizes: RescaleSizes, only: Sequence[str], say: Callable[[str], None]) -> list[Table]:
    """Measures rescales of a job in each way."""
    names = [name for name in CONTENDERS if not only or any(word.lower() in name.lower() for word in only)]
    savepoint = filled_savepoint(root, sizes.keys, PARALLELISMS[-1], say) if sizes.keys else {}
    contenders = [_contender(root, name, max(1, sizes.keys), savepoint.get("location")) for name in names]
    try:
        rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
    finally:
        end_processes(processes_of(root / "work"))  # of a killed contender: its PostgreSQL would continue
    table = Table(
        f"Rescales of a running deduplication with {sizes.keys:,} keys at first, 2 to 4 to 1 to 2; pause from the last"
        " commit before to the first one after, and time from the request to the end, in milliseconds; median of"
        f" {len(rounds)} rounds",
        ("way", "pause", "of LIVE", "spread", "ordinary gap", "batches held", "request to end", "state"),
    )
    ours = savepoint.get("state_bytes", math.nan)
    for name in names:
        table.add(
            name,
            count(rounds.median(name, "pause_ms")),
            times(rounds.ratio(name, RescaleMode.LIVE.value, "pause_ms")),
            percent(rounds.spread(name, "pause_ms")),
            count(rounds.median(name, "gap_ms")),
            count(rounds.median(name, "held_ms")),
            count(rounds.median(name, "done_ms")),
            mebibytes(ours if name in OURS else rounds.median(name, "state_bytes")),
        )
    table.notes += [
        f"a commit is output that readers see: Flink's files at its checkpoints, one each {CHECKPOINT_INTERVAL_MS} ms",
        "Keyscale's end is the verified rescale, the peers' is the first commit after it",
        "Flink runs in a standalone session with a warm client; the new job takes over a native savepoint's files",
        f"Spark has a batch each {TRIGGER}; the warm session stops the query between two, and repartitions its state",
    ]
    return [table]


def _contender(root: Path, name: str, keys: int, savepoint: str | None) -> Contender:
    options: dict[str, Any] = {"keys": keys, "parallelisms": list(PARALLELISMS)}
    if name == SPARK:
        return Contender(name, "bench.peers.rescale_spark", options, check=check_rows)
    if name in {FLINK_SAVEPOINT, FLINK_ADAPTIVE}:
        options |= flink_options(root) | {"adaptive": name == FLINK_ADAPTIVE}
        return Contender(name, "bench.peers.rescale_flink", options, check=check_rows)
    options |= {"mode": name, "restore_from": savepoint, "ttl_hours": TTL_HOURS}
    return Contender(name, "bench.peers.rescale_keyscale", options, check=check_rows)
