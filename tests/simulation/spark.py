"""Spark, played: a session without jobs, a query that plans batches over a source, and subtasks that run in turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.job import table_of
from tests.support.rehearsal.rehearsed_spark import RehearsedContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.job import Record
    from tests.simulation.world import World

RECORDS_PER_BATCH = 4
POLL_SECONDS = 0.5
_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0}\n{"end":%d}'
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


class QueryEndedError(Exception):
    """The query was stopped."""


class Source:
    """The records that the job reads: they come in the course of time, and stay.

    Attributes:
        records: All so far.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []


class PlayedSession:
    """A SparkSession: it has a context, and its jobs always succeed."""

    def __init__(self) -> None:
        self.sparkContext = PlayedContext()

    def range(self, count: int) -> Any:
        class _Range:
            def count(self) -> int:
                return count

        return _Range()


class PlayedContext(RehearsedContext):
    """A SparkContext whose jobs can be cancelled."""

    def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
        return


class PlayedIdleQueries:
    """In the place of `IdleQueries` and `ProgressWatch`: the query says itself whether it waits for input."""

    def __init__(self, *_: Any) -> None:
        return

    def close(self) -> None:
        return

    def poll(self) -> None:
        return

    poll_once_more = poll


class PlayedQuery:
    """A streaming query, and what makes one; each `start` begins another one on a task of its own.

    Args:
        world: The world.
        source: The records.
        waits: Told whether the query has looked for input and found none.
    """

    def __init__(self, world: World, source: Source, waits: Callable[[bool], None]) -> None:
        self._world = world
        self._source = source
        self._waits = waits
        self._process: Callable[[Any, int], None] | None = None
        self._directory = Path()
        self._until_present_end = False

    @property
    def writeStream(self) -> PlayedQuery:  # noqa: N802 - Spark's name
        made = PlayedQuery(self._world, self._source, self._waits)
        made._process = self._process
        return made

    def foreachBatch(self, process: Callable[[Any, int], None]) -> PlayedQuery:  # noqa: N802 - as above
        self._process = process
        return self

    def trigger(self, **options: Any) -> PlayedQuery:
        self._until_present_end = options.get("availableNow", False)
        return self

    def option(self, _: str, location: str) -> PlayedQuery:
        self._directory = Path(location.removeprefix("file://"))
        return self

    def start(self) -> PlayedQuery:
        self._active, self._stopped, self._failure = True, False, None
        self._last = len(self._source.records) if self._until_present_end else None
        self._task = self._world.spawn(self._world.process, "query", self._run)
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - as above
        return self._active

    def exception(self) -> BaseException | None:
        return self._failure

    def stop(self) -> None:
        self._stopped = True

    def awaitTermination(self) -> None:  # noqa: N802 - as above
        self._world.join(self._task)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._run_batches()
        except Exception as failure:  # noqa: BLE001 - as Spark does
            self._failure = failure
        self._active = False

    def _run_batches(self) -> None:
        assert self._process is not None
        world, records = self._world, self._source.records
        number = max((int(file.name) for file in (self._directory / "commits").glob("[0-9]*")), default=-1) + 1
        start = self._end_of(number - 1) or 0
        while not self._stopped:
            end = self._end_of(number)
            if end is None:
                available = len(records) if self._last is None else self._last
                if available <= start:
                    self._waits(True)
                    if self._last is not None:
                        return
                    world.sleep(POLL_SECONDS)
                    continue
                end = min(available, start + 1 + world.chance.randrange(RECORDS_PER_BATCH))
                self._write("offsets", number, _OFFSETS % end)
            self._waits(False)
            world.sleep(0.02)
            self._process(table_of(records[start:end]), number)
            self._write("commits", number, _COMMIT)
            start, number = end, number + 1

    def _end_of(self, number: int) -> int | None:
        try:
            text = (self._directory / "offsets" / str(number)).read_text()
        except FileNotFoundError:
            return None
        return int(text.rpartition('"end":')[2].rstrip("}"))

    def _write(self, folder: str, number: int, content: str) -> None:
        directory = self._directory / folder
        directory.mkdir(parents=True, exist_ok=True)
        (directory / str(number)).write_text(content)
