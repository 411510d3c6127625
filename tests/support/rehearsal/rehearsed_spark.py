"""The parts of Spark that the runtime uses, without Spark: a query over given batches, and jobs over subtasks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from keyscale.jobs.runtime.batch.source_order import SourceInputs

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


class RehearsedAccumulator:
    """An accumulator of lists."""

    def __init__(self, value: list[Any]) -> None:
        self.value = value

    def add(self, items: list[Any]) -> None:
        self.value.extend(items)


class RehearsedContext:
    """A SparkContext's broadcast variables, and its labels and tags, which nobody reads here."""

    master = "rehearsed"

    def accumulator(self, value: list[Any], _: object) -> RehearsedAccumulator:
        return RehearsedAccumulator(value)

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


class RehearsedSession:
    """A SparkSession without Spark."""

    def __init__(self) -> None:
        self.sparkContext = RehearsedContext()


class RehearsedSources:
    """In the place of `JobSources`, for a job with one source whose frame does not matter."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = tuple(nodes)

    @classmethod
    def ordered(cls, nodes: Sequence[Any], _uids: Sequence[str]) -> Self:
        return cls(nodes)

    def names(self) -> list[str]:
        return ["RehearsedSource[]"]

    def declared(self) -> list[SourceInputs]:
        return [SourceInputs(node.uid) for node in self.nodes]

    def stream(self) -> Any:
        return self.nodes[0].frame

    def positions(self, recorded: dict[str, str]) -> dict[str, str]:
        return dict(recorded)

    def input_uids(self) -> list[str]:
        return [node.uid for node in self.nodes]

    def counting(self) -> list[Any]:
        return []  # as of a source that only Spark can ask


class RehearsedPlacement:
    """One row per subtask; a function over them runs here and now."""

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism

    @classmethod
    def create(cls, _spark: Any, parallelism: int) -> Self:
        return cls(parallelism)

    def release(self) -> None:
        return

    @property
    def subtasks(self) -> RehearsedPlacement:
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
