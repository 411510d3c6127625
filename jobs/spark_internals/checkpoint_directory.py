"""Spark's local checkpoint directory.

In its files a streaming query records how far it has read its sources.

It relies on their undocumented layout (present in Spark 2.4, tested with 4.3), small text files that are each written
once:

- `metadata`: the query's id.
- `offsets/N`: where batch N ends in every source: a line with a version, a line of JSON with `batchWatermarkMs`
  and `batchTimestampMs`, then one line per input of the query, `-` for an input that has read nothing.
- `commits/N`: batch N is done: a line with a version, and JSON with `nextBatchWatermarkMs`.
- `sources/<i>/N`: the log of a source: a line with a version, then a line per file. Every tenth entry of the file
  source is called `N.compact` and holds the lines of all entries up to N, that is, of all files ever read.
- `state`: the state of Spark's own stateful operators.

When Spark calls foreachBatch for batch N, the directory holds offsets/N and every source's log up to it, but not yet
commits/N. Spark accepts a directory that is written as Spark would have left it.

In Keyscale the directory is ephemeral: its files are in the commit log before their batch runs, and a new driver
writes a fresh directory from the log. Spark then runs a planned batch again with the same positions, or plans the
next one.

Spark derives the compaction interval from the last two compacted files, or from the only compacted file: after 19 alone
it continues by twenties, after 39 alone by tens, and it stops for good if entry 49 is not compacted then. The recorded
positions have the last compacted file only. So the directory that Spark starts from has an empty compacted file before
it, at a chosen distance, and the compacted file that Spark would look for.

The commit log has `N.compact.added` instead of `N.compact`: only the lines that entry N adds, so that a plan is as
long as its batch has files. `N.compact` is assembled again from the earlier entries.

It has no switch. A directory without a batch's offsets fails the batch before it runs, with JOB_POSITIONS_MISSING.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from keyscale.state.doors.catalogue import SourcePositions
from keyscale.state.doors.commits import BatchEnd, ReadFiles

from ..errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_SOURCE_LOG_ENTRY = re.compile(r"(?P<folder>sources/\d+)/(?P<number>\d+)(?P<compact>\.compact)?(?P<added>\.added)?")
_BATCH_ENTRY = re.compile(r"(?P<folder>offsets|commits)/(?P<batch>\d+)")
_ADDED = ".added"
_COMPACT_INTERVAL = 10  # Spark's default of spark.sql.streaming.fileSource.log.compactInterval
_QUERY = "metadata"
_OFFSETS_HEADER_LINES = 2
_NOTHING_READ = "-"


class SparkStateUnsupportedError(JobError):
    """The job's input has a stateful operator of Spark's own.

    A checkpoint would not hold the operator's state.
    """

    code = "JOB_SPARK_STATE_UNSUPPORTED"
    domain = "user"
    advice = (
        "Use key_by(...).process(...), deduplicate(...) and windows of Keyscale instead of Spark's stateful operators."
    )


class PositionsCorruptError(JobError):
    """The recorded source positions cannot be turned into Spark's files."""

    code = "JOB_POSITIONS_CORRUPT"
    domain = "external"
    advice = "Restore from an earlier checkpoint or savepoint."


class PositionsMissingError(JobError):
    """Spark's checkpoint directory lacks the offsets of a new batch.

    The batch could not be run again with the same input.
    """

    code = "JOB_POSITIONS_MISSING"
    advice = "Nothing was planned or committed; check whether the driver's work directory was removed or is full."


class PositionsDirectory:
    """Spark's local checkpoint directory.

    It is written once before Spark starts, and read after each of Spark's plans.

    Args:
        path: A local path, which does not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[str] = set()

    @property
    def location(self) -> str:
        """The location of the directory for Spark.

        Spark takes the characters literally: an encoded URI would name another directory.
        """
        return f"file://{self._path}"

    def write(self, positions: Mapping[str, str]) -> None:
        """Writes the directory that Spark starts from.

        Raises:
            PositionsCorruptError: A recorded path leads out of the directory.
            FileExistsError: The directory exists.
        """
        self._path.mkdir(parents=True)
        files = with_compacted(positions)
        for name, content in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise PositionsCorruptError("a recorded source position has a path outside the checkpoint directory")
            target = self._path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        self._seen = set(files)

    def read_new(self) -> dict[str, str]:
        """Returns the files that Spark has added since the last call.

        The content is by relative path.

        Spark never changes a file that it has written, so each file is read once.

        Raises:
            SparkStateUnsupportedError: The query has a stateful operator of Spark's own; its state would be lost.
        """
        if (self._path / "state").exists():
            raise SparkStateUnsupportedError("the job's input uses a stateful operator of Spark's own")
        found = dict(self._files())
        new = {name: path.read_text(encoding="utf-8") for name, path in found.items() if name not in self._seen}
        self._seen = set(found)
        return new

    def _files(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self._path.rglob("*")):
            # Names that start with a dot are checksums and unfinished files.
            if not path.name.startswith(".") and path.is_file():
                yield path.relative_to(self._path).as_posix(), path


def shortened(planned: Mapping[str, str], positions: Mapping[str, str]) -> dict[str, str]:
    """Shortens a planned batch's new files for the log.

    A source's compacted files are reduced to their additions.

    Args:
        planned: The new files.
        positions: The files before them.
    """
    files = {**positions, **planned}
    return dict(_shortened(name, content, files) for name, content in planned.items())


def _shortened(name: str, content: str, files: Mapping[str, str]) -> tuple[str, str]:
    entry = _SOURCE_LOG_ENTRY.fullmatch(name)
    if entry is None or not entry["compact"]:
        return name, content
    header, *lines = content.split("\n")
    before = _lines_before(files, entry["folder"], int(entry["number"]))
    if before is None or lines[: len(before)] != before:
        return name, content
    return f"{name}{_ADDED}", "\n".join([header, *lines[len(before) :]])


def with_compacted(positions: Mapping[str, str]) -> dict[str, str]:
    """Adds the compacted files that Spark looks for to positions.

    Raises:
        PositionsCorruptError: Entries of a source's log are missing.
    """
    files = dict(positions)
    logs: dict[str, list[re.Match[str]]] = {}
    for name in positions:
        if entry := _SOURCE_LOG_ENTRY.fullmatch(name):
            logs.setdefault(entry["folder"], []).append(entry)
    for folder, entries in logs.items():
        compacted = max((int(entry["number"]) for entry in entries if entry["compact"]), default=None)
        if compacted is None:
            continue
        interval = _compact_interval(compacted)
        latest = max(int(entry["number"]) for entry in entries)
        wanted = latest - (latest + 1) % interval
        if wanted != compacted:
            files[f"{folder}/{wanted}.compact"] = _compacted(positions, folder, wanted)
        for entry in entries:
            if int(entry["number"]) < wanted or (int(entry["number"]) == wanted and not entry["compact"]):
                del files[entry[0]]
        if wanted >= interval:
            header, _, _ = files[f"{folder}/{wanted}.compact"].partition("\n")
            files[f"{folder}/{wanted - interval}.compact"] = header
    return files


def _compact_interval(compacted: int) -> int:
    """Returns an interval that a compacted file of this number fits.

    The interval has about as many entries as Spark's default.
    """
    entries = compacted + 1
    return next((each for each in range(_COMPACT_INTERVAL, entries) if entries % each == 0), entries)


def _compacted(files: Mapping[str, str], folder: str, number: int) -> str:
    """Returns an entry of a source's log as a compacted file.

    The file also has all earlier entries.
    """
    before = _lines_before(files, folder, number)
    content = files.get(f"{folder}/{number}")
    if before is None or content is None:
        raise PositionsCorruptError(f"entries up to {folder}/{number} are missing in the recorded source positions")
    header, *added = content.split("\n")
    return "\n".join([header, *before, *added])


def _lines_before(files: Mapping[str, str], folder: str, number: int) -> list[str] | None:
    """Returns all lines of a source's log before an entry.

    Returns None if entries are missing.
    """
    later: list[str] = []
    for earlier in reversed(range(number)):
        name = f"{folder}/{earlier}"
        compacted = files.get(f"{name}.compact")
        content = files.get(name, files.get(f"{name}.compact{_ADDED}")) if compacted is None else compacted
        if content is None:
            return None
        later[:0] = content.split("\n")[1:]
        if compacted is not None:
            break
    return later


def merged(positions: Mapping[str, str], planned: Mapping[str, str], batch_id: int) -> dict[str, str]:
    """Adds the files of planned batches, and drops outdated files.

    A file is outdated if no restart at or after the last batch needs it.

    Spark's start needs the offsets of the last two batches, the last commit, and of each source's log the last
    compacted file and later entries.

    Args:
        positions: The files before.
        planned: The new files, as Spark wrote them or `shortened`.
        batch_id: The last planned batch.

    Raises:
        PositionsCorruptError: Entries of a source's log are missing.
    """
    files = {**positions, **planned}
    compacted: dict[str, int] = {}
    for name in files:
        if (entry := _SOURCE_LOG_ENTRY.fullmatch(name)) and entry["compact"]:
            compacted[entry["folder"]] = max(int(entry["number"]), compacted.get(entry["folder"], 0))
    for folder, number in compacted.items():
        name = f"{folder}/{number}.compact"
        if name not in files:
            files[name] = _completed(files, folder, number)
    return {name: content for name, content in files.items() if _is_needed(name, batch_id, compacted)}


def _completed(files: Mapping[str, str], folder: str, number: int) -> str:
    header, *added = files[f"{folder}/{number}.compact{_ADDED}"].split("\n")
    before = _lines_before(files, folder, number)
    if before is None:
        raise PositionsCorruptError(f"entries before {folder}/{number} are missing in the recorded source positions")
    return "\n".join([header, *before, *added])


def _is_needed(name: str, batch_id: int, compacted: Mapping[str, int]) -> bool:
    if batch := _BATCH_ENTRY.fullmatch(name):
        return int(batch["batch"]) >= batch_id - 1
    if entry := _SOURCE_LOG_ENTRY.fullmatch(name):
        return not entry["added"] and int(entry["number"]) >= compacted.get(entry["folder"], 0)
    return True


def positions_of(files: Mapping[str, str], sources: Sequence[str]) -> SourcePositions:
    """Converts files of a query over some sources to source positions."""
    batches: list[BatchEnd] = []
    read_files: dict[str, list[ReadFiles]] = {}
    others = {name: content for name, content in files.items() if name != _QUERY}
    for name, content in files.items():
        version, *lines = content.split("\n")
        if (entry := _BATCH_ENTRY.fullmatch(name)) and entry["folder"] == "offsets" and lines:
            commit = others.pop(f"commits/{entry['batch']}", None)
            batches.append(BatchEnd(int(entry["batch"]), version, lines[0], tuple(lines[1:]), commit))
        elif (entry := _SOURCE_LOG_ENTRY.fullmatch(name)) and not entry["added"]:
            of_input = read_files.setdefault(entry["folder"].removeprefix("sources/"), [])
            of_input.append(ReadFiles(int(entry["number"]), bool(entry["compact"]), version, tuple(lines)))
        else:
            continue
        del others[name]
    return SourcePositions(
        sources=tuple(sources),
        query=files.get(_QUERY),
        batches=tuple(sorted(batches, key=lambda batch: batch.number)),
        read_files={number: tuple(sorted(found, key=lambda one: one.number)) for number, found in read_files.items()},
        others=others,
    )


def files_of(positions: SourcePositions) -> dict[str, str]:
    """Returns the files that Spark keeps source positions in."""
    files = dict(positions.others)
    if positions.query is not None:
        files[_QUERY] = positions.query
    for batch in positions.batches:
        files[f"offsets/{batch.number}"] = "\n".join([batch.version, batch.facts, *batch.ends])
        if batch.commit is not None:
            files[f"commits/{batch.number}"] = batch.commit
    for number, of_input in positions.read_files.items():
        for each in of_input:
            name = f"sources/{number}/{each.number}{'.compact' if each.is_whole else ''}"
            files[name] = "\n".join([each.version, *each.files])
    return files


def check_planned(positions: Mapping[str, str], batch_id: int) -> None:
    """Asserts that positions say where a batch ends.

    Without that the batch could run again with other input.

    Raises:
        PositionsMissingError: The positions lack the batch's offsets.
    """
    if f"offsets/{batch_id}" not in positions:
        raise PositionsMissingError(f"Spark's checkpoint directory does not hold the offsets of its batch {batch_id}")


def planned_files(planned: Mapping[str, str]) -> list[str]:
    """Returns the files that file sources read in a planned batch.

    `planned` are the new files of the batch's plan, as Spark wrote them or `shortened`.
    """
    found = []
    for name, content in planned.items():
        if entry := _SOURCE_LOG_ENTRY.fullmatch(name):
            read = [json.loads(line) for line in content.split("\n")[1:] if line]
            found += [unquote(each["path"]) for each in read if each.get("batchId") == int(entry["number"])]
    return found


def is_offsets(name: str) -> bool:
    """Returns whether a file of this name holds a batch's offsets.

    The offsets say where the batch ends in every source.
    """
    entry = _BATCH_ENTRY.fullmatch(name)
    return entry is not None and entry["folder"] == "offsets"


def ends_of(files: Mapping[str, str], batch_id: int, inputs: int) -> list[str | None]:
    """Returns where a batch ends in each input.

    An input without a record has None.
    """
    lines = files.get(f"offsets/{batch_id}", "").splitlines()[_OFFSETS_HEADER_LINES:]
    ends = [None if line == _NOTHING_READ else line for line in lines]
    return [*ends, *[None] * inputs][:inputs]


def found_at_ms(files: Mapping[str, str], batch_id: int) -> int | None:
    """Returns when Spark found a batch's input, by the driver's clock.

    None if Spark does not say so.
    """
    try:
        return int(json.loads(files[f"offsets/{batch_id}"].splitlines()[1])["batchTimestampMs"])
    except (KeyError, IndexError, ValueError, TypeError):
        return None


def inputs_of(offsets: str) -> int:
    """Returns the number of inputs of the query that wrote the offsets."""
    return len(offsets.splitlines()) - _OFFSETS_HEADER_LINES


def with_new_inputs(offsets: str, count: int) -> str:
    """Adds `count` inputs that have read nothing to a query's offsets."""
    return "\n".join([*offsets.splitlines(), *[_NOTHING_READ] * count])


def with_inputs_kept(positions: Mapping[str, str], kept: Sequence[bool]) -> dict[str, str]:
    """Returns the files of a query without some of its inputs.

    The kept inputs move up in its places.
    """
    places = {str(before): str(now) for now, before in enumerate(at for at, keep in enumerate(kept) if keep)}
    files = {}
    for name, content in positions.items():
        folder, _, rest = name.removeprefix("sources/").partition("/")
        if is_offsets(name):
            header, ends = content.splitlines()[:_OFFSETS_HEADER_LINES], content.splitlines()[_OFFSETS_HEADER_LINES:]
            files[name] = "\n".join([*header, *(end for end, keep in zip(ends, kept, strict=True) if keep)])
        elif not name.startswith("sources/"):
            files[name] = content
        elif folder in places:
            files[f"sources/{places[folder]}/{rest}"] = content
    return files


def with_commit(positions: Mapping[str, str], batch_id: int) -> dict[str, str]:
    """Marks a batch as done, as Spark does.

    Spark had no time to do so itself.

    Raises:
        PositionsCorruptError: The positions do not hold the batch's offsets.
    """
    name = f"commits/{batch_id}"
    if name in positions:
        return dict(positions)
    # The watermark after the batch is at least the watermark before it; Spark advances it with the next batch's rows.
    watermark_ms = _watermark_ms(positions, batch_id)
    return {**positions, name: f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'}


def _watermark_ms(positions: Mapping[str, str], batch_id: int) -> int:
    try:
        return int(json.loads(positions[f"offsets/{batch_id}"].splitlines()[1])["batchWatermarkMs"])
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise PositionsCorruptError(
            f"the recorded source positions do not hold the offsets of batch {batch_id}"
        ) from error
