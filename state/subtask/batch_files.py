"""The sorted files of a batch: of its large runs, and of changes that are spilled before the batch ends."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from ..documents.changelog import upload_sorted
from ..errors import BatchTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ..documents.changelog import SortedFile
    from ..engine.engine import Engine, SortedRun
    from ..objects.object_store import ObjectStore

SORTED_FILE_BYTES_MIN = 4 << 20  # a framed run is in memory several times while it is encoded and written


class SplitRuns(NamedTuple):
    """A batch's small runs, their size, and each large run, or part of one, with its file."""

    framed: list[SortedRun]
    framed_bytes: int
    files: list[tuple[SortedRun, Path]]


def split_runs(runs: Sequence[SortedRun], engine: Engine, directory: Path, mutations_min: int | None) -> SplitRuns:
    """Writes each large run as a sorted file of its own.

    Args:
        runs: The batch's runs.
        engine: Writes the files; it can ingest them later.
        directory: The directory for the files.
        mutations_min: A run with so many mutations or more is large; None: only a run of many bytes is.

    """
    framed: list[SortedRun] = []
    framed_bytes = 0
    files: list[tuple[SortedRun, Path]] = []
    for run in runs:
        is_long = mutations_min is not None and len(run) >= mutations_min
        if is_long or (size_bytes := run.size_bytes()) >= SORTED_FILE_BYTES_MIN:
            for part in engine.split(run):
                file = directory / f"{uuid.uuid4().hex}.sst"
                engine.write_sorted_file(part, file)
                files.append((part, file))
        else:
            framed.append(run)
            framed_bytes += size_bytes
    return SplitRuns(framed, framed_bytes, files)


def spill_runs(
    runs: Iterable[SortedRun], engine: Engine, store: ObjectStore, path: str, directory: Path
) -> list[SortedFile]:
    """Uploads runs as sorted files and applies them to the local state before the batch ends.

    So a batch may be larger than memory. The uploaded files count only once the batch's changelog names them.

    Args:
        runs: At most one run per column family.
        engine: The state.
        store: The object store.
        path: The prefix of the files' paths, which no other task uses.
        directory: For temporary files.
    """
    spilled = []
    for number, run in enumerate(part for whole in runs for part in engine.split(whole)):
        file = directory / f"{uuid.uuid4().hex}.sst"
        engine.write_sorted_file(run, file)
        # Uploaded first, because ingesting may write to the file.
        spilled.append(upload_sorted(store, f"{path}.{number}.sst", run, file))
        engine.ingest(run.family, [file])
        file.unlink()
    return spilled


def check_size(split: SplitRuns, spilled: Sequence[SortedFile], allowed_bytes: int) -> None:
    """Refuses a batch that changes more bytes than are allowed.

    Raises:
        BatchTooLargeError: It does.
    """
    size = split.framed_bytes + sum(file.size_bytes for file in spilled)
    size += sum(file.stat().st_size for _, file in split.files)
    if size > allowed_bytes:
        raise BatchTooLargeError(f"a batch has changed {size} bytes of state; {allowed_bytes} are allowed per subtask")
