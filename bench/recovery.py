"""`./keyscale bench recovery`: from a fault to the next commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.dedup_input import WrongOutputError
from bench.measure import Contender, measure
from bench.scale import TTL_HOURS, filled_savepoint
from bench.table import Table, count, mebibytes, percent, times
from keyscale.deploy.demo.home_processes import end_processes, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FAULTS = ("driver", "worker", "disk")
SPARES = (0, 1)
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


def run_recovery(root: Path, sizes: RecoverySizes, say: Callable[[str], None]) -> list[Table]:
    """Measures jobs that start from savepoints; writes missing savepoints."""
    savepoints = {keys: filled_savepoint(root, keys, sizes.cores, say) for keys in sizes.keys}
    contenders = [
        _contender(keys, savepoints[keys]["location"], fault, spares, sizes)
        for keys in sizes.keys
        for fault in FAULTS
        for spares in SPARES
    ]
    try:
        rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
    finally:
        end_processes(processes_of(root / "work"))  # of a killed contender: its PostgreSQL would continue
    table = Table(
        f"Faults of a running deduplication with a TTL of {TTL_HOURS} hours; from the fault to the next commit, and"
        f" from the request to start the job to its first commit, in milliseconds; median of {len(rounds)} rounds of"
        f" {sizes.faults} faults each",
        ("fault", "keys in state", "state", "spares", "recovery", "of a new driver", "spread", "start"),
    )
    for keys in sizes.keys:
        for fault in FAULTS:
            for spares in SPARES:
                name, new = _name(keys, fault, spares), _name(keys, fault, 0)
                table.add(
                    fault,
                    f"{keys:,}",
                    mebibytes(savepoints[keys]["state_bytes"]),
                    str(spares),
                    count(rounds.median(name, "recovery_ms")),
                    times(rounds.ratio(name, new, "recovery_ms")),
                    percent(rounds.spread(name, "recovery_ms")),
                    count(rounds.median(name, "start_ms")),
                )
    table.notes.append(
        f"targets with a spare driver: {DRIVER_MS_MAX:,} ms after the kill of a driver, {START_MS_MAX:,} ms for a start"
    )
    table.notes.append("a local master's executor is in the driver's JVM: its loss is the loss of the driver")
    return [table]


def _name(keys: int, fault: str, spares: int) -> str:
    return f"{fault}, {keys:,} keys, {spares} spares"


def _contender(keys: int, location: str, fault: str, spares: int, sizes: RecoverySizes) -> Contender:
    options = {
        "keys": keys,
        "restore_from": location,
        "ttl_hours": TTL_HOURS,
        "cores": sizes.cores,
        "fault": fault,
        "faults": sizes.faults,
        "spares": spares,
    }

    def check(answer: Mapping[str, Any], _folder: Path) -> None:
        if answer["output_rows"] != answer["expected_rows"]:
            message = f"{answer['output_rows']} rows came out; {answer['expected_rows']} are right"
            raise WrongOutputError(message)

    return Contender(_name(keys, fault, spares), "bench.peers.recovery_keyscale", options, check=check)
