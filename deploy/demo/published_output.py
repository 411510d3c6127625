"""Reads the published output of the main job's file sink.

Each batch has a directory, which is complete or absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path


def batch_number(file: Path) -> int:
    """Returns the number of the batch that published a file."""
    return int(file.parent.name.removeprefix("batch="))


def published_files(output: Path) -> list[Path]:
    """Returns the data files of all published batches, by batch."""
    return sorted(output.glob("batch=*/*.parquet"), key=lambda file: (batch_number(file), file.name))


class PublishedOutput:
    """Counts the rows of a growing output; reads each footer once."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._rows: dict[Path, int] = {}

    def count_rows(self) -> int:
        """Returns how many rows have been published so far."""
        for path in published_files(self._output):
            if path not in self._rows:
                self._rows[path] = int(pq.ParquetFile(path).metadata.num_rows)
        return sum(self._rows.values())


def read_rows(output: Path, last_batch: int | None = None) -> list[dict[str, Any]]:
    """Reads all published rows; rows of a key keep their order.

    Args:
        output: The directory of the sink.
        last_batch: The last batch to read; None: all.
    """
    rows: list[dict[str, Any]] = []
    for path in published_files(output):
        if last_batch is None or batch_number(path) <= last_batch:
            # As a single file: a dataset would turn the directory's name into a column.
            rows.extend(pq.ParquetFile(path).read().to_pylist())
    return rows
