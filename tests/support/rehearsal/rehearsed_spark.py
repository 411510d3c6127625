"""The parts of Spark that the runtime uses, without Spark: a query over given batches, and jobs over subtasks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0}\n{"batch":%d}'
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


class RehearsedBroadcast:
    """A broadcast variable in the process that made it."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def destroy(self) -> None:
        del self.value


class RehearsedContext:
    """A SparkContext's broadcast variables, and its labels and tags, which nobody reads here."""

    def broadcast(self, value: bytes) -> RehearsedBroadcast:
        return RehearsedBroadcast(value)

    def setJobDescription(self, _: str) -> None:  # noqa: N802 - Spark's name
        return

    def addJobTag(self, _: str) -> None:  # noqa: N802 - as above
        return

    def removeJobTag(self, _: str) -> None:  # noqa: N802 - as above
        return

    def cancelJobsWithTag(self, _: str) -> None:  # noqa: N802 - as above
        return


class RehearsedAnchor:
    """One row per subtask; a function over them runs here and now."""

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism

    @property
    def subtasks(self) -> RehearsedAnchor:
        return self

    def mapPartitions(self, function: Callable[[Iterator[tuple[int]]], Iterator[Any]]) -> Any:  # noqa: N802 - Spark's name
        results = list(function((subtask,) for subtask in range(self.parallelism)))
        return SimpleNamespace(collect=lambda: results)


class RehearsedQuery:
    """A streaming query that reads one given batch after the other, and plans and commits them in Spark's files."""

    def __init__(self, batches: Sequence[pa.Table]) -> None:
        self._batches = batches
        self._directory: Path | None = None
        self._process: Callable[[Any, int], None] | None = None

    @property
    def writeStream(self) -> RehearsedQuery:  # noqa: N802 - Spark's name
        return self

    def foreachBatch(self, process: Callable[[Any, int], None]) -> RehearsedQuery:  # noqa: N802 - as above
        self._process = process
        return self

    def option(self, _: str, location: str) -> RehearsedQuery:
        self._directory = Path(location.removeprefix("file://"))
        return self

    def start(self) -> RehearsedQuery:
        return self

    @property
    def next_batch(self) -> int:
        """The number of the batch after the one that is committed in Spark's files."""
        assert self._directory is not None
        return max((int(file.name) for file in (self._directory / "commits").glob("[0-9]*")), default=-1) + 1

    @property
    def is_at_end(self) -> bool:
        return self.next_batch >= len(self._batches)

    def run_next(self) -> None:
        """Plans the next batch, has it processed, and commits it."""
        assert self._directory is not None
        assert self._process is not None
        number = self.next_batch
        self._write("offsets", number, _OFFSETS % number)
        self._process(self._batches[number], number)
        self._write("commits", number, _COMMIT)

    def _write(self, folder: str, number: int, content: str) -> None:
        assert self._directory is not None
        directory = self._directory / folder
        directory.mkdir(parents=True, exist_ok=True)
        (directory / str(number)).write_text(content)
