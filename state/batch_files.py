"""Which of a batch's runs are written as sorted files of their own, and whether all of them are within the limit."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from state.errors import BatchTooLargeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from state.changelog import SortedFile
    from state.engine import Engine, SortedRun


def sorted_files(
    runs: Sequence[SortedRun], engine: Engine, directory: Path, least: int | None
) -> tuple[list[SortedRun], list[tuple[SortedRun, Path]]]:
    """Small runs, and large ones with the files that were written of them.

    Args:
        runs: A batch's.
        engine: Writes the files, and can ingest them.
        directory: Where they go.
        least: Mutations from which on a run is large; None: none is.
    """
    if least is None:
        return list(runs), []
    files = []
    for run in runs:
        if len(run) >= least:
            file = directory / f"{uuid.uuid4().hex}.sst"
            engine.write_sorted_file(run, file)
            files.append((run, file))
    return [run for run in runs if len(run) < least], files


def check_size(
    framed: Sequence[SortedRun],
    files: Sequence[tuple[SortedRun, Path]],
    spilled: Sequence[SortedFile],
    allowed_bytes: int,
) -> None:
    """Refuse a batch of more bytes than are allowed.

    Raises:
        BatchTooLargeError: It is one.
    """
    size = sum(file.stat().st_size for _, file in files) + sum(file.size_bytes for file in spilled)
    for run in framed:
        size += sum(map(len, run.keys)) + sum(map(len, filter(None, run.values)))
    if size > allowed_bytes:
        raise BatchTooLargeError(f"a batch has changed {size} bytes of state; {allowed_bytes} are allowed a subtask")
