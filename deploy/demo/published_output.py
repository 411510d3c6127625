"""Reads what the main job's file sink has published: one directory per batch, complete or absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ["report_id", "tailnum", "flights", "dep_delay_sum", "last_airport", "dest", "dest_flights"]


def published_files(output: Path) -> list[Path]:
    """Returns the data files of all published batches, in the order of their paths."""
    return sorted(output.glob("batch=*/*.parquet"))


class PublishedOutput:
    """Counts the rows of a growing output cheaply: the footer of each file is read once."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._rows: dict[Path, int] = {}

    def count_rows(self) -> int:
        """Returns how many rows have been published so far."""
        for path in published_files(self._output):
            if path not in self._rows:
                self._rows[path] = int(pq.ParquetFile(path).metadata.num_rows)
        return sum(self._rows.values())


def read_rows(output: Path) -> list[dict[str, Any]]:
    """Reads all published rows."""
    rows: list[dict[str, Any]] = []
    for path in published_files(output):
        # As a single file, not as a dataset, which would turn the directory's name into a column.
        rows.extend(pq.ParquetFile(path).read(columns=COLUMNS).to_pylist())
    return rows
