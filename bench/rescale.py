"""`./keyscale bench rescale`: live rescales beside new drivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.dedup_input import WrongOutputError
from bench.measure import Contender, measure
from bench.table import Table, count, percent, times
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from keyscale.vocabulary import RescaleMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PARALLELISMS = (4, 1, 2)


@dataclass(frozen=True, slots=True)
class RescaleSizes:
    """The size of the measurement.

    Attributes:
        rounds: The number of runs of each way.
        cores: The cores of each run.
    """

    rounds: int
    cores: int


def run_rescale(root: Path, sizes: RescaleSizes, say: Callable[[str], None]) -> list[Table]:
    """Measures rescales of a job in both ways."""
    contenders = [_contender(mode) for mode in RescaleMode]
    try:
        rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
    finally:
        end_processes(processes_of(root / "work"))  # of a killed contender: its PostgreSQL would continue
    table = Table(
        "Rescales of a running deduplication, 2 to 4 to 1 to 2; pause from the last commit before to the first one"
        f" after, and time from the request to the end, in milliseconds; median of {len(rounds)} rounds",
        ("way", "pause", "of STANDBY", "spread", "batches held", "request to end"),
    )
    for mode in RescaleMode:
        table.add(
            mode.value,
            count(rounds.median(mode.value, "pause_ms")),
            times(rounds.ratio(mode.value, RescaleMode.STANDBY.value, "pause_ms")),
            percent(rounds.spread(mode.value, "pause_ms")),
            count(rounds.median(mode.value, "held_ms")),
            count(rounds.median(mode.value, "done_ms")),
        )
    return [table]


def _contender(mode: RescaleMode) -> Contender:
    def check(answer: Mapping[str, Any], _folder: Path) -> None:
        if answer["output_rows"] != answer["expected_rows"]:
            message = f"{answer['output_rows']} rows came out; {answer['expected_rows']} are right"
            raise WrongOutputError(message)

    options = {"mode": mode.value, "parallelisms": list(PARALLELISMS)}
    return Contender(mode.value, "bench.peers.rescale_keyscale", options, check=check)
