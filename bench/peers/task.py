"""The task of every deduplication contender, and the form of its answer.

It needs only the standard library.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

WARM_UP_SHARE = 0.2  # of the records, before the warm rate is counted


@dataclass(frozen=True, slots=True)
class DedupTask:
    """Writes each id's first row to `output`, exactly once.

    It reads the files of a folder in name order.

    Attributes:
        input: Folder of the input files.
        work: Fresh folder for everything else: output, state, checkpoints.
        events: Rows in the input.
        files_per_batch: The number of files of a micro-batch.
        cores: The number of concurrent tasks.
        checkpoint_interval_ms: For engines without micro-batches.
    """

    input: str
    work: str
    events: int
    files_per_batch: int
    cores: int
    checkpoint_interval_ms: int

    @property
    def output(self) -> Path:
        return Path(self.work) / "output"


class Progress:
    """Counts of processed records over time.

    The overall and the warm rate follow from them, alike for every engine.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._points: list[tuple[float, int]] = [(0.0, 0)]

    def processed(self, records: int, seconds: float | None = None) -> None:
        """Records the total of processed records, now or at a time."""
        self._points.append((time.perf_counter() - self._started if seconds is None else seconds, records))

    def answer(
        self, events: int, state_bytes: int | None, *, ended_seconds: float | None = None, **more: object
    ) -> Mapping[str, Any]:
        """Returns the measurements when all output is committed.

        That is now, unless `ended_seconds` is given.

        Returns:
            `processing_seconds` from the query's start to its last commit, `rate` (events over that), `warm_rate` (from
            the moment when a fifth of the events had been processed), and `state_bytes` in checkpoint storage:
            snapshots and changelogs.
        """
        ended = time.perf_counter() - self._started if ended_seconds is None else ended_seconds
        warm_from, warm_records = next(point for point in self._points if point[1] >= WARM_UP_SHARE * events)
        return {
            "processing_seconds": ended,
            "rate": events / ended,
            "warm_rate": (events - warm_records) / (ended - warm_from) if events > warm_records else None,
            "state_bytes": state_bytes,
            **more,
        }


def folder_bytes(folder: Path) -> int:
    """Returns the bytes of all files below a folder, which may change.

    A missing folder has 0 bytes.
    """
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if file.is_file():
                size += file.stat().st_size
    return size
