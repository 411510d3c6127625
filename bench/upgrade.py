"""`./keyscale bench upgrade`: the downtime of program changes by state size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.dedup_input import check_rows
from bench.measure import Contender, measure
from bench.scale import TTL_HOURS, filled_savepoint
from bench.table import Table, count, mebibytes, percent, times
from keyscale.deploy.demo.home_processes import end_processes, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PHASES = ("SAVEPOINT", "STOP", "RESTORE", "VERIFY")
RATIO_MAX = 1.5


@dataclass(frozen=True, slots=True)
class UpgradeSizes:
    """The size of the measurement.

    Attributes:
        keys: The numbers of keys in state, one measurement each.
        changes: The number of program changes per job.
        rounds: The number of runs of each job.
        cores: The cores of each run; also the parallelism.
    """

    keys: Sequence[int]
    changes: int
    rounds: int
    cores: int


def run_upgrade(root: Path, sizes: UpgradeSizes, say: Callable[[str], None]) -> list[Table]:
    """Measures jobs that start from savepoints; writes missing savepoints."""
    savepoints = {keys: filled_savepoint(root, keys, sizes.cores, say) for keys in sizes.keys}
    contenders = [_contender(keys, savepoints[keys]["location"], sizes) for keys in sizes.keys]
    try:
        rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
    finally:
        end_processes(processes_of(root / "work"))  # of a killed contender: its PostgreSQL would continue
    table = Table(
        f"A new program for a deduplication with a TTL of {TTL_HOURS} hours; from the last commit before to the "
        f"first one after, in milliseconds; median of {len(rounds)} rounds of {sizes.changes} changes each",
        ("keys in state", "state", "downtime", "of the first", "spread", *PHASES),
    )
    first = f"{sizes.keys[0]:,}"
    for keys in sizes.keys:
        name = f"{keys:,}"
        table.add(
            name,
            mebibytes(savepoints[keys]["state_bytes"]),
            count(rounds.median(name, "downtime_ms")),
            times(rounds.ratio(name, first, "downtime_ms")),
            percent(rounds.spread(name, "downtime_ms")),
            *(count(rounds.median(name, f"{phase.lower()}_ms")) for phase in PHASES),
        )
    table.notes.append(f"target: at most {RATIO_MAX} times the first")
    return [table]


def _contender(keys: int, location: str, sizes: UpgradeSizes) -> Contender:
    options = {
        "keys": keys,
        "restore_from": location,
        "ttl_hours": TTL_HOURS,
        "cores": sizes.cores,
        "changes": sizes.changes,
    }
    return Contender(f"{keys:,}", "bench.peers.upgrade_keyscale", options, check=check_rows)
