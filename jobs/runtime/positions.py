"""Source positions: the files of Spark's local checkpoint directory, and their way into the commit log and back.

Spark keeps what it has read in a directory of small text files, each written once: `metadata` (the query's id), `offsets/N`
(where batch N ends in every source), `commits/N` (batch N is done) and `sources/<i>/...` (each source's own log; the file
source merges its log into `<n>.compact` every tenth entry). When foreachBatch is called for batch N, the directory holds
offsets/N and every source's log up to it, but not yet commits/N.

Here the directory is ephemeral: what it held when batch N was planned is in the log before the batch runs, and a new
driver writes a fresh directory from the log. Spark then either re-runs a planned batch with the very same positions or plans
the next one.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from jobs.runtime.errors import PositionsCorruptError, PositionsMissingError, SparkStateUnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SOURCE_LOG_ENTRY = re.compile(r"(?P<folder>sources/\d+)/(?P<number>\d+)(?P<compact>\.compact)?")
_BATCH_ENTRY = re.compile(r"(?:offsets|commits)/(?P<batch>\d+)")


class PositionsDirectory:
    """Spark's local checkpoint directory: written once before Spark starts, and read after each of Spark's plans.

    Args:
        path: A local path; nothing is there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[str] = set()

    @property
    def location(self) -> str:
        """What Spark is given. It takes the characters as they are: an encoded URI would name another directory."""
        return f"file://{self._path}"

    def write(self, positions: Mapping[str, str]) -> None:
        """Write the directory that Spark starts from.

        Raises:
            PositionsCorruptError: A recorded path leads out of the directory.
            FileExistsError: The directory exists.
        """
        self._path.mkdir(parents=True)
        for name, content in positions.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                message = "a recorded source position has a path outside the checkpoint directory"
                raise PositionsCorruptError(message)
            target = self._path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        self._seen = set(positions)

    def read_new(self) -> dict[str, str]:
        """The files that Spark has added since the last call, content by relative path.

        Spark never changes a file that it has written, so none is read twice.

        Raises:
            SparkStateUnsupportedError: The query has a stateful operator of Spark's own, whose state would be lost.
        """
        if (self._path / "state").exists():
            message = "the job's input uses a stateful operator of Spark's own"
            raise SparkStateUnsupportedError(message)
        there = dict(self._files())
        new = {name: path.read_text(encoding="utf-8") for name, path in there.items() if name not in self._seen}
        self._seen = set(there)
        return new

    def _files(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self._path.rglob("*")):
            # Names that start with a dot are checksums and files that are still being written.
            if not path.name.startswith(".") and path.is_file():
                yield path.relative_to(self._path).as_posix(), path


def merged(positions: Mapping[str, str], planned: Mapping[str, str], batch_id: int) -> dict[str, str]:
    """Add the files of a planned batch, and let go of those that no restart at or after that batch needs.

    Spark's start needs the offsets of the last batch and the one before it, the last commit, and of each source's log the
    last compacted file and what came after it.
    """
    files = {**positions, **planned}
    compacted: dict[str, int] = {}
    for name in files:
        if (entry := _SOURCE_LOG_ENTRY.fullmatch(name)) and entry["compact"]:
            compacted[entry["folder"]] = max(int(entry["number"]), compacted.get(entry["folder"], 0))
    return {name: content for name, content in files.items() if _is_needed(name, batch_id, compacted)}


def _is_needed(name: str, batch_id: int, compacted: Mapping[str, int]) -> bool:
    if batch := _BATCH_ENTRY.fullmatch(name):
        return int(batch["batch"]) >= batch_id - 1
    if entry := _SOURCE_LOG_ENTRY.fullmatch(name):
        return int(entry["number"]) >= compacted.get(entry["folder"], 0)
    return True


def check_planned(positions: Mapping[str, str], batch_id: int) -> None:
    """Assert that positions say where a batch ends: a plan without that would be run again with other input.

    Raises:
        PositionsMissingError: They do not.
    """
    if f"offsets/{batch_id}" not in positions:
        message = f"Spark's checkpoint directory does not hold the offsets of its batch {batch_id}"
        raise PositionsMissingError(message)


def with_commit(positions: Mapping[str, str], batch_id: int) -> dict[str, str]:
    """Mark a batch as done, in Spark's words, where Spark had no time to write them itself.

    Raises:
        PositionsCorruptError: The positions do not hold the batch's offsets.
    """
    name = f"commits/{batch_id}"
    if name in positions:
        return dict(positions)
    # The watermark after the batch is at least the one before it; Spark moves it on with the next batch's rows.
    watermark_ms = _watermark_ms(positions, batch_id)
    return {**positions, name: f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'}


def _watermark_ms(positions: Mapping[str, str], batch_id: int) -> int:
    try:
        return int(json.loads(positions[f"offsets/{batch_id}"].splitlines()[1])["batchWatermarkMs"])
    except (KeyError, IndexError, ValueError, TypeError) as error:
        message = f"the recorded source positions do not hold the offsets of batch {batch_id}"
        raise PositionsCorruptError(message) from error
