"""Reads what the main job's file sink has published: one directory a batch, complete or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ["report_id", "tailnum", "flights", "dep_delay_sum", "last_airport", "dest", "dest_flights"]


def published_files(output: Path) -> list[Path]:
    """Returns the data files of all published batches, in the order of their paths."""
    return sorted(output.glob("batch=*/*.parquet"))


def count_rows(output: Path) -> int:
    """Counts the sink's rows by the files' footers alone: cheap enough to show progress with."""
    return sum(int(pq.ParquetFile(path).metadata.num_rows) for path in published_files(output))


def read_rows(output: Path) -> list[dict[str, Any]]:
    """Reads all rows of the sink."""
    rows: list[dict[str, Any]] = []
    for path in published_files(output):
        # One file, not a dataset: the directory's name is no column.
        rows.extend(pq.ParquetFile(path).read(columns=COLUMNS).to_pylist())
    return rows
