"""`./keyscale bench recovery`: the longest wait for a commit after a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.dedup_input import WrongOutputError
from bench.measure import Contender, measure
from bench.scale import TTL_HOURS, filled_savepoint
from bench.table import Table, count, percent, times
from keyscale.deploy.demo.home_processes import end_processes, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

NEW, SPARE, SAME, SPARK = "new driver", "spare driver", "running driver", "spark by itself"
FAULTS = {"driver": (NEW, SPARE, SPARK), "disk": (NEW, SPARE), "worker": (SAME,), "executor": (SAME, SPARK)}
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
    contenders = [_contender(side, savepoints[side.keys]["location"], sizes) for side in sides]
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


def _contender(side: Side, location: str, sizes: RecoverySizes) -> Contender:
    options: dict[str, Any] = {
        "keys": side.keys,
        "cores": sizes.cores,
        "fault": side.fault,
        "faults": sizes.faults,
    }
    if side.by == SPARK:
        return Contender(side.name, "bench.peers.recovery_spark", options)
    options |= {
        "restore_from": location,
        "ttl_hours": TTL_HOURS,
        "spares": int(side.by == SPARE),
    }

    def check(answer: Mapping[str, Any], _folder: Path) -> None:
        if answer["output_rows"] != answer["expected_rows"]:
            message = f"{answer['output_rows']} rows came out; {answer['expected_rows']} are right"
            raise WrongOutputError(message)

    return Contender(side.name, "bench.peers.recovery_keyscale", options, check=check)
