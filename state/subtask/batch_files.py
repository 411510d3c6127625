"""The sorted files of a batch: large runs and spilled changes."""

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

SORTED_FILE_BYTES_MIN = 4 << 20  # encoding and writing a framed run holds it in memory several times


class SplitRuns(NamedTuple):
    """A batch's small runs, their size, and large runs with their files."""

    framed: list[SortedRun]
    framed_bytes: int
    files: list[tuple[SortedRun, Path]]


def split_runs(runs: Sequence[SortedRun], engine: Engine, directory: Path, mutations_min: int | None) -> SplitRuns:
    """Writes each large run as a separate sorted file.

    Args:
        runs: The batch's runs.
        engine: Writes the files; it can ingest them later.
        directory: The directory for the files.
        mutations_min: A run with at least this many mutations is large; None: only its bytes count.

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
    """Uploads runs as sorted files and applies them before the batch ends.

    A batch may thus be larger than memory. The uploaded files count only once the batch's changelog names them.

    Args:
        runs: At most one run per column family.
        engine: The state.
        store: The object store.
        path: The prefix of the files' paths, unique to the task.
        directory: For temporary files.
    """
    spilled = []
    for number, run in enumerate(part for whole in runs for part in engine.split(whole)):
        file = directory / f"{uuid.uuid4().hex}.sst"
        engine.write_sorted_file(run, file)
        # Upload before ingesting, which may write to the file.
        spilled.append(upload_sorted(store, f"{path}.{number}.sst", run, file))
        engine.ingest(run.family, [file])
        file.unlink()
    return spilled


def check_size(split: SplitRuns, spilled: Sequence[SortedFile], allowed_bytes: int) -> None:
    """Refuses a batch that changes more bytes than allowed.

    Raises:
        BatchTooLargeError: The batch exceeds the limit.
    """
    size = split.framed_bytes + sum(file.size_bytes for file in spilled)
    size += sum(file.stat().st_size for _, file in split.files)
    if size > allowed_bytes:
        raise BatchTooLargeError(f"a batch has changed {size} bytes of state; {allowed_bytes} are allowed per subtask")
