"""The job's query is replaced while it runs; only a query that nothing replaces has ended by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from keyscale.jobs.runtime.driver.job_query import JobQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class PlayedQuery:
    """A query that ends when it is told to."""

    isActive = True  # noqa: N815 - Spark's name

    def stop(self) -> None:
        self.isActive = False

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        self.isActive = False


class PlayedLoop:
    """Starts queries; a further start ends the query before, as Spark does with a query of the same id."""

    def __init__(self) -> None:
        self.started: list[PlayedQuery] = []
        self.seen_at_starts: list[bool] = []
        self.query: JobQuery | None = None

    def start(self, until_present_end: bool) -> StreamingQuery:  # noqa: ARG002 - the signature of a start
        if self.query is not None:
            self.started[-1].isActive = False
            self.seen_at_starts.append(self.query.ended_by_itself)
        self.started.append(PlayedQuery())
        return cast("StreamingQuery", self.started[-1])


@pytest.fixture
def loop() -> PlayedLoop:
    loop = PlayedLoop()
    loop.query = JobQuery(loop.start)
    return loop


def test_a_query_that_ends_because_another_query_starts_has_not_ended_by_itself(loop: PlayedLoop) -> None:
    assert loop.query is not None
    loop.query.read_on()
    loop.query.drain()
    loop.query.read_on()
    assert loop.seen_at_starts == [False, False, False]
    assert not loop.query.ended_by_itself


def test_a_drained_query_has_not_ended_by_itself(loop: PlayedLoop) -> None:
    assert loop.query is not None
    loop.query.drain()
    assert not loop.query.ended_by_itself


def test_a_query_that_ends_while_it_should_read_on_has_ended_by_itself(loop: PlayedLoop) -> None:
    assert loop.query is not None
    loop.started[-1].isActive = False
    assert loop.query.ended_by_itself
    loop.query.read_on()
    loop.started[-1].isActive = False
    assert loop.query.ended_by_itself


def test_each_query_reads_on_or_to_the_present_end_as_asked_and_none_follows_a_stop() -> None:
    asked: list[bool] = []
    queries: list[PlayedQuery] = []

    def start(until_present_end: bool) -> StreamingQuery:
        asked.append(until_present_end)
        queries.append(PlayedQuery())
        return cast("StreamingQuery", queries[-1])

    query = JobQuery(start)
    assert query.current is cast("StreamingQuery", queries[0])
    query.drain()
    query.read_on()
    assert asked == [False, True, False]
    assert query.current is cast("StreamingQuery", queries[2])
    assert [each.isActive for each in queries] == [False, False, True]
    query.stop()
    query.read_on()
    query.drain()
    assert (asked, queries[2].isActive) == ([False, True, False], False)
