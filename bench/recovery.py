"""`./keyscale bench recovery`: the longest wait for a commit after a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.dedup_input import check_rows
from bench.environments import flink_options
from bench.measure import Contender, measure
from bench.peers.flink_session import CHECKPOINT_INTERVAL_MS
from bench.scale import TTL_HOURS, filled_savepoint
from bench.table import Table, count, percent, times
from keyscale.deploy.demo.home_processes import end_processes, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

NEW, SPARE, SAME, SPARK = "new driver", "spare driver", "running driver", "spark by itself"
FLINK, FLINK_SPARE = "flink by itself", "flink with a spare taskmanager"
FAULTS = {
    "driver": (NEW, SPARE, SPARK, FLINK, FLINK_SPARE),
    "disk": (NEW, SPARE),
    "worker": (SAME,),
    "executor": (SAME, SPARK),
}
"""What recovers from each fault."""
DRIVER_MS_MAX = 5000
START_MS_MAX = 5000


@dataclass(frozen=True, slots=True)
class RecoverySizes:
    """The size of the measurement.

    Attributes:
        keys: The numbers of keys in state, one measurement each.
        faults: The number of faults per job.
        rounds: The number of runs of each job.
        cores: The cores of each run; also the parallelism.
    """

    keys: Sequence[int]
    faults: int
    rounds: int
    cores: int


def run_recovery(root: Path, sizes: RecoverySizes, only: Sequence[str], say: Callable[[str], None]) -> list[Table]:
    """Measures jobs that start from savepoints; writes missing savepoints."""
    words = [word.lower() for word in only]
    sides = [side for side in _sides(sizes) if not words or any(word in side.name for word in words)]
    savepoints = {keys: filled_savepoint(root, keys, sizes.cores, say) for keys in {side.keys for side in sides}}
    contenders = [_contender(root, side, savepoints[side.keys]["location"], sizes) for side in sides]
    try:
        rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
    finally:
        end_processes(processes_of(root / "work"))  # of a killed contender: its PostgreSQL would continue
    table = Table(
        f"Faults of a running deduplication with a TTL of {TTL_HOURS} hours; the longest wait for a commit after the"
        " fault, and the time from the first start to the first commit, in milliseconds; median of"
        f" {len(rounds)} rounds of {sizes.faults} faults each",
        ("fault", "keys in state", "recovered by", "recovery", "slowest", "of a new driver", "spread", "start"),
    )
    for side in sides:
        table.add(
            side.fault,
            f"{side.keys:,}",
            side.by,
            count(rounds.median(side.name, "recovery_ms")),
            count(rounds.median(side.name, "recovery_ms_max")),
            times(rounds.ratio(side.name, Side(side.keys, "driver", NEW).name, "recovery_ms")),
            percent(rounds.spread(side.name, "recovery_ms")),
            count(rounds.median(side.name, "start_ms")),
        )
    table.notes.append(
        f"targets with a spare driver: {DRIVER_MS_MAX:,} ms after the kill of a driver, {START_MS_MAX:,} ms for a start"
    )
    table.notes.append("executors are lost in a standalone cluster of two workers; all else runs on a local master")
    table.notes.append(
        "Spark's query is started again at once; its start also fills the state; without Python it has no worker, and"
        " each start reads the state from the checkpoint, so that the loss of the disk is the loss of the driver"
    )
    table.notes.append(
        "Flink's fault is the kill of the taskmanager with the tasks, which is started again at once and finds its"
        f" local state; it commits at checkpoints, each {CHECKPOINT_INTERVAL_MS} ms, the first without the whole state"
    )
    return [table]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison: a fault, a size, and a means."""

    keys: int
    fault: str
    by: str

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.keys:,} keys, {self.by}"


def _sides(sizes: RecoverySizes) -> list[Side]:
    return [Side(keys, fault, by) for keys in sizes.keys for fault, means in FAULTS.items() for by in means]


def _contender(root: Path, side: Side, location: str, sizes: RecoverySizes) -> Contender:
    options: dict[str, Any] = {"keys": side.keys, "cores": sizes.cores, "faults": sizes.faults}
    if side.by in {FLINK, FLINK_SPARE}:
        options |= flink_options(root) | {"spares": int(side.by == FLINK_SPARE)}
        return Contender(side.name, "bench.peers.recovery_flink", options, check=check_rows)
    options["fault"] = side.fault
    if side.by == SPARK:
        return Contender(side.name, "bench.peers.recovery_spark", options)
    options |= {
        "restore_from": location,
        "ttl_hours": TTL_HOURS,
        "spares": int(side.by == SPARE),
    }
    return Contender(side.name, "bench.peers.recovery_keyscale", options, check=check_rows)
