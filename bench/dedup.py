"""`./keyscale bench dedup`: one deduplication by UUID in all contenders.

They run in turn on the same files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.dedup_input import FILES_PER_BATCH, DedupInput, check_output, dedup_input
from bench.environments import flink_jars, flink_python, transform_with_state_path
from bench.measure import Contender, Rounds, measure
from bench.table import Table, count, decimal, mebibytes, percent, times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FILES = "Spark, files alone"
OURS = "Keyscale, deduplicate"
OURS_BY_RECORD = "Keyscale, process_element"
SPARK = "Spark dropDuplicates"
SPARK_WITHIN = "Spark dropDuplicatesWithinWatermark"
FLINK = "Flink SQL"
SPARK_PYTHON = "Spark transformWithState, Python rows"
SPARK_PANDAS = "Spark transformWithState, pandas"
FLINK_PYTHON = "PyFlink KeyedProcessFunction"

FAST = (FILES, OURS, OURS_BY_RECORD, SPARK, SPARK_WITHIN, FLINK)
SLOW = (OURS_BY_RECORD, SPARK_PYTHON, SPARK_PANDAS, FLINK_PYTHON)


@dataclass(frozen=True, slots=True)
class DedupSizes:
    """The size of the measurement.

    Attributes:
        events: For the contenders without a Python call per record, and Keyscale.
        batches: The micro-batches of these events.
        slow_events: For the Python peers, and Keyscale beside them.
        slow_batches: The micro-batches of the slow events.
        checkpoint_interval_ms: For Flink, and for Keyscale's checkpoints beside the changelog of each batch.
        rounds: The number of runs of each contender.
        cores: The cores of each contender.
    """

    events: int
    batches: int
    slow_events: int
    slow_batches: int
    checkpoint_interval_ms: int
    rounds: int
    cores: int


def run_dedup(root: Path, sizes: DedupSizes, only: Sequence[str], say: Callable[[str], None]) -> list[Table]:
    """Measures fast and Python contenders, and returns tables and ratios."""
    fast_input = dedup_input(root / "inputs", sizes.events, sizes.batches)
    slow_input = dedup_input(root / "inputs", sizes.slow_events, sizes.slow_batches)
    chosen = _Chosen(root, sizes, only)
    fast = measure(chosen.contenders(FAST, fast_input), sizes.rounds, root / "work", sizes.cores, say)
    slow = measure(chosen.contenders(SLOW, slow_input), sizes.rounds, root / "work", sizes.cores, say)
    tables = [_table(files, rounds) for files, rounds in ((fast_input, fast), (slow_input, slow)) if len(rounds)]
    return [*tables, _reached(fast, slow)]


class _Chosen:
    """Creates the wanted contenders, and what they need."""

    def __init__(self, root: Path, sizes: DedupSizes, only: Sequence[str]) -> None:
        self._root = root
        self._sizes = sizes
        self._only = [word.lower() for word in only]

    def contenders(self, names: Sequence[str], files: DedupInput) -> list[Contender]:
        wanted = [name for name in names if not self._only or any(word in name.lower() for word in self._only)]
        return [self._contender(name, files) for name in wanted]

    def _contender(self, name: str, files: DedupInput) -> Contender:
        task = {
            "input": files.folder,
            "events": files.events,
            "files_per_batch": FILES_PER_BATCH,
            "cores": self._sizes.cores,
            "checkpoint_interval_ms": self._sizes.checkpoint_interval_ms,
        }
        if name in {FLINK, FLINK_PYTHON}:
            module = "bench.peers.flink_sql" if name == FLINK else "bench.peers.flink_process_function"
            options: dict[str, Any] = {**task, "jars": flink_jars(self._root)}
            return Contender(name, module, options, flink_python(self._root), check=_checked(files, _flink_files))
        if name in {OURS, OURS_BY_RECORD}:
            options = {**task, "form": "batch" if name == OURS else "process_element"}
            return Contender(name, "bench.peers.keyscale", options, check=_checked(files, _batch_folder_files))
        if name in {SPARK_PYTHON, SPARK_PANDAS}:
            options = {**task, "pandas": name == SPARK_PANDAS}
            path = transform_with_state_path(self._root)
            module = "bench.peers.spark_transform_with_state"
            return Contender(name, module, options, python_path=path, check=_checked(files, _spark_files))
        if name in {SPARK, SPARK_WITHIN}:
            options = {**task, "within_watermark": name == SPARK_WITHIN}
            return Contender(name, "bench.peers.spark_drop_duplicates", options, check=_checked(files, _spark_files))
        return Contender(name, "bench.peers.files_alone", task)


def _checked(files: DedupInput, committed: Callable[[Path], list[Path]]) -> Callable[[Mapping[str, Any], Path], None]:
    return lambda _answer, folder: check_output(files, committed(folder / "output"))


def _spark_files(output: Path) -> list[Path]:
    return sorted(output.glob("part-*.parquet"))  # without failures, each was committed


def _batch_folder_files(output: Path) -> list[Path]:
    return sorted(output.glob("batch=*/part-*.parquet"))


def _flink_files(output: Path) -> list[Path]:
    return sorted(output.glob("part-*"))  # a file in progress has a name that begins with a dot


def _table(files: DedupInput, rounds: Rounds) -> Table:
    title = f"{files.events:,} events, {files.distinct:,} distinct, {files.batches} batches; median of {len(rounds)}"
    headings = (
        "contender",
        "records/s",
        "warm records/s",
        "spread",
        "CPU s",
        "peak memory",
        "state",
        "state bytes/key",
    )
    table = Table(title, headings)
    for name in rounds.contenders():
        state_bytes = rounds.median(name, "state_bytes")
        table.add(
            name,
            count(rounds.median(name, "rate")),
            count(rounds.median(name, "warm_rate")),
            percent(rounds.spread(name, "rate")),
            count(rounds.median(name, "cpu_seconds")),
            mebibytes(rounds.median(name, "memory_peak_bytes")),
            mebibytes(state_bytes),
            decimal(state_bytes / files.distinct),
        )
    return table


def _reached(fast: Rounds, slow: Rounds) -> Table:
    """Returns Keyscale's ratios to the better peer of each round."""
    table = Table("Ratios, paired within each round", ("of", "over the better of", "reach", "whole run", "warm"))
    rows = (
        (fast, OURS, "Spark dropDuplicates, Flink SQL", (SPARK, FLINK), "2"),
        (slow, OURS_BY_RECORD, "all three Python peers", (SPARK_PYTHON, SPARK_PANDAS, FLINK_PYTHON), "10"),
    )
    for rounds, ours, described, peers, reach in rows:
        whole, warm = (rounds.ratio_to_best(ours, peers, figure) for figure in ("rate", "warm_rate"))
        table.add(ours, described, reach, times(whole), times(warm))
    return table
