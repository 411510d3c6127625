"""The watch over a query's progress: Spark tells of a batch after its commit, and queries are replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from keyscale.jobs.protocol.messages import Commit
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.progress_watch import ProgressWatch
from keyscale.state.documents.job_counters import NOTHING_COUNTED


class Query:
    """A query of Spark, as far as the watch looks at it."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.looked = 0
        self._told: dict[str, Any] | None = None

    def tell(self, lost: int) -> None:
        sources = [{"latestOffset": {"records_lost": lost, "records_behind": 7}, "endOffset": None}]
        self._told = {"runId": self.run_id, "sources": sources, "timestamp": "2026-11-26T04:00:00.000Z"}

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        self.looked += 1
        return self._told


@dataclass
class Queries:
    """The job's query, which may be replaced."""

    current: Query


class NoneIdle:
    """None of these queries waits for input."""

    def has(self, _query: Query) -> bool:
        return False


@dataclass
class OneIdle:
    """One query waits for input."""

    query: Query

    def has(self, query: Query) -> bool:
        return query is self.query


@pytest.fixture
def status() -> DriverStatus:
    return DriverStatus()


def commit(status: DriverStatus) -> None:
    found = Commit(batch_id=status.commits, at_ms=1)
    status.committed(found, counters=NOTHING_COUNTED, input_records=5, output_records=1, duration_ms=1)


def lost(status: DriverStatus) -> int:
    return status.heartbeat().metrics.lost_records


def test_lost_records_are_seen_that_spark_tells_of_after_the_commit_was_seen(status: DriverStatus) -> None:
    queries = Queries(Query("first"))
    watch = ProgressWatch(queries, NoneIdle(), [], status, lambda: 0.0)  # type: ignore[arg-type]  # as far as it looks
    commit(status)
    watch.poll()
    queries.current.tell(120)
    watch.poll()
    assert lost(status) == 120
    looked = queries.current.looked
    watch.poll()
    assert queries.current.looked == looked, "nothing was committed since"


def test_what_a_query_has_told_last_counts_when_another_one_has_taken_over_or_the_run_has_ended(
    status: DriverStatus,
) -> None:
    first, second = Query("first"), Query("second")
    queries = Queries(first)
    watch = ProgressWatch(queries, NoneIdle(), [], status, lambda: 0.0)  # type: ignore[arg-type]  # as far as it looks
    commit(status)
    watch.poll()
    watch.poll()
    first.tell(120)
    queries.current = second
    watch.poll()
    assert lost(status) == 120
    watch.poll_once_more()
    assert status.heartbeat().metrics.pending_records == 7, "the second query has told nothing yet"
    second.tell(3)
    watch.poll_once_more()
    assert lost(status) == 123


def test_without_commits_the_sources_are_looked_at_again_after_some_seconds(status: DriverStatus) -> None:
    queries = Queries(Query("first"))
    seconds = [500.0, 505.0, 510.0, 510.5, 520.0, 521.0]
    passing = iter(seconds)
    watch = ProgressWatch(queries, NoneIdle(), [], status, lambda: next(passing))  # type: ignore[arg-type]  # as far as it looks
    looked = []
    for _ in seconds:
        watch.poll()
        looked.append(queries.current.looked)
    assert looked == [1, 1, 1, 2, 2, 3]


def test_the_job_waits_for_input_while_its_present_query_does(status: DriverStatus) -> None:
    first, second = Query("first"), Query("second")
    queries = Queries(first)
    watch = ProgressWatch(queries, OneIdle(second), [], status)  # type: ignore[arg-type]  # as far as it looks
    for queries.current, waits in ((first, False), (second, True), (first, False)):
        watch.poll()
        assert status.heartbeat().metrics.waits_for_input is waits


def test_a_query_that_was_replaced_just_before_the_end_of_the_run_counts_too(status: DriverStatus) -> None:
    first, second = Query("first"), Query("second")
    queries = Queries(first)
    watch = ProgressWatch(queries, NoneIdle(), [], status, lambda: 0.0)  # type: ignore[arg-type]  # as far as it looks
    first.tell(120)
    second.tell(3)
    queries.current = second
    watch.poll_once_more()
    assert lost(status) == 123
