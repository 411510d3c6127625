"""Changes of a batch that go to files before it ends, so that a batch may be larger than memory."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from state.changelog import upload_sorted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state.changelog import SortedFile
    from state.engine import Engine, SortedRun
    from state.objects import ObjectStore
    from state.settings import RocksDbSettings

ENTRY_BYTES = 200  # of memory that a pending entry takes, about


def spill_entries(settings: RocksDbSettings) -> int:
    """How many entries may be pending: as many as have room in a memory as large as the stores' own budget."""
    return min(settings.memory_budget_bytes // ENTRY_BYTES, settings.batch_entries_max)


def spill_runs(
    runs: Iterable[SortedRun], engine: Engine, store: ObjectStore, path: str, directory: Path
) -> list[SortedFile]:
    """Make runs durable as sorted files, then part of the local state, whose files are of no use until the batch has ended.

    Args:
        runs: At most one a family.
        engine: The state.
        store: Where the files go.
        path: What their names begin with, which no other task uses.
        directory: For files on their way.
    """
    spilled = []
    for number, run in enumerate(runs):
        file = directory / f"{uuid.uuid4().hex}.sst"
        engine.write_sorted_file(run, file)
        spilled.append(
            upload_sorted(store, f"{path}.{number}.sst", run, file)
        )  # first: ingesting may write to the file
        engine.ingest(run.family, [file])
        file.unlink()
    return spilled
