"""The directory in which a Spark query keeps its progress.

`keyscale.jobs.spark_internals.checkpoint_directory` describes its files.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.jobs.spark_internals.hadoop_files import HadoopDirectory

from .errors import SparkCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

_NUMBER = re.compile(r"\d+")
_SOURCE_ENTRY = re.compile(r"(\d+)(\.compact)?")
_VERSION = "v1"
NOTHING_READ = "-"


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What Spark records of a batch.

    Attributes:
        number: Spark's number of the batch.
        watermark_ms: The watermark by which the batch has emitted and removed state; 0: none yet.
        next_watermark_ms: The watermark of the next batch.
        timestamp_ms: The processing time of the batch.
    """

    number: int
    watermark_ms: int
    next_watermark_ms: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SparkCheckpoint:
    """A query's progress after its last committed batch.

    Attributes:
        location: The directory.
        batch: The last committed batch.
        files: The files that say how far the query has read, by relative path.
        ends: The end of the batch in each input; None for an input that has read nothing.
        uncommitted: The first batch that Spark has planned and not committed.
    """

    location: str
    batch: BatchFacts
    files: Mapping[str, str]
    ends: tuple[str | None, ...]
    uncommitted: int | None = None

    @classmethod
    def read(cls, spark: SparkSession, location: str) -> SparkCheckpoint:
        """Reads the checkpoint of a query.

        Raises:
            SparkCheckpointError: The directory is no checkpoint, or has no committed batch.
            SinkUnavailableError, SinkForbiddenError, SinkPublishError: The file system fails or refuses.
        """
        root = HadoopDirectory(spark, location)
        commits, offsets = (_numbers(root.child(folder).names()) for folder in ("commits", "offsets"))
        if not offsets:
            raise SparkCheckpointError(f"{location} has no directory `offsets` with batches of a query")
        committed = [number for number in commits if number in offsets]
        if not committed:
            raise SparkCheckpointError(f"the query of {location} has committed no batch yet")
        last = committed[-1]
        names = [f"offsets/{last}", f"commits/{last}", "metadata"]
        if last:
            names.append(f"offsets/{last - 1}")
        files = {name: text for name in names if (text := root.read_text(name)) is not None}
        missing = sorted({*names} - {*files})
        if missing:
            raise SparkCheckpointError(f"{location} lacks the file {missing[0]}")
        ends = _ends(files[f"offsets/{last}"], location)
        for number, end in enumerate(ends):
            if (entry := file_log_entry(end)) is not None:
                files |= _file_log(root, number, entry)
        return cls(
            location,
            _facts(last, files[f"offsets/{last}"], files[f"commits/{last}"], location),
            files,
            ends,
            next((number for number in offsets if number > last), None),
        )


def file_log_entry(end: str | None) -> int | None:
    """Returns the entry of a file log at which a batch ends.

    Returns None for the end of another source.
    """
    try:
        found = json.loads(end or "null")
    except ValueError:
        return None
    return found["logOffset"] if isinstance(found, dict) and [*found] == ["logOffset"] else None


def file_log_names(names: Iterable[str], entry: int) -> list[str]:
    """Returns the needed files of a file log up to an entry.

    Later entries have the files of a batch that is not committed.
    """
    known: dict[int, tuple[bool, str]] = {}
    for name in names:
        found = _SOURCE_ENTRY.fullmatch(name)
        if found is not None and int(found[1]) <= entry:
            known[int(found[1])] = max(known.get(int(found[1]), (False, "")), (found[2] is not None, name))
    compacted = max((number for number, (is_whole, _) in known.items() if is_whole), default=0)
    return [known[number][1] for number in sorted(known) if number >= compacted]


def _file_log(root: HadoopDirectory, number: int, entry: int) -> dict[str, str]:
    folder = f"sources/{number}"
    names = file_log_names(root.child(folder).names(), entry)
    files = {f"{folder}/{name}": text for name in names if (text := root.read_text(f"{folder}/{name}")) is not None}
    if not names or len(files) < len(names) or not names[-1].startswith(str(entry)):
        raise SparkCheckpointError(f"{root.path} lacks the log of files {folder}/{entry}")
    return files


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _ends(offsets: str, location: str) -> tuple[str | None, ...]:
    lines = offsets.splitlines()
    if lines[:1] != [_VERSION]:
        raise SparkCheckpointError(f"the offsets of {location} do not have version {_VERSION}, which can be imported")
    return tuple(None if end == NOTHING_READ else end for end in lines[2:])


def _facts(number: int, offsets: str, commit: str, location: str) -> BatchFacts:
    planned, done = (_json_of(text, location) for text in (offsets, commit))
    return BatchFacts(
        number,
        int(planned.get("batchWatermarkMs", 0)),
        int(done.get("nextBatchWatermarkMs", 0)),
        int(planned.get("batchTimestampMs", 0)),
    )


def _json_of(text: str, location: str) -> dict[str, Any]:
    try:
        found = json.loads(text.splitlines()[1])
    except (IndexError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise SparkCheckpointError(f"the record of a batch in {location} cannot be read")
    return found
