"""The records that wait: all that no committed batch has, also while a batch runs and while a driver restores."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.jobs.errors import SourceRecordsLostError
from keyscale.jobs.runtime.control.driver_status import IDLE_MS, LAG_AGE_S_MIN, DriverStatus
from keyscale.jobs.runtime.driver import backlog as backlog_module
from keyscale.jobs.runtime.driver.backlog import ASK_SECONDS, Backlog, Reached
from keyscale.jobs.sources import source_reader
from keyscale.jobs.sources.positions import BatchPositions
from keyscale.jobs.sources.source import Source
from keyscale.jobs.sources.waiting_records import WaitingRecords

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from keyscale.jobs.sources.source import Position


class Log(Source):
    """A source of numbered records, of which a test sets the ends."""

    schema = "number bigint"  # type: ignore[assignment]  # a property of the contract

    def __init__(self, **ends: int) -> None:
        self.ends: dict[str, Position] = dict(ends)
        self.asked = 0
        self.is_away = False
        self.is_closed = False

    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        return {split: 10 for split in self.ends if split not in known}

    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        assert limit is None, "all that waits counts, and not only the next batch"
        self.asked += 1
        if self.is_away:
            raise ConnectionError("no broker answers")
        return {split: self.ends[split] for split in positions}

    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise AssertionError("nothing is read to count")

    def close(self) -> None:
        self.is_closed = True


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def offsets(*inputs: dict[str, tuple[int, int]] | None) -> str:
    """Spark's record of a batch that reads these ranges of the splits of its inputs."""
    lines = ["-" if each is None else json.dumps({"version": 1, "splits": each}) for each in inputs]
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *lines])


def waiting(status: DriverStatus) -> int | None:
    return status.heartbeat().metrics.pending_records


@pytest.fixture
def status() -> DriverStatus:
    return DriverStatus()


def test_the_records_of_the_running_batch_wait_until_its_commit(status: DriverStatus) -> None:
    clock, source = Clock(), Log(a=100, b=50)
    committed = offsets({"a": (10, 20), "b": (0, 50)})
    planned = offsets({"a": (20, 95), "b": (50, 50)})
    reached = Reached({"offsets/3": committed}, 3)
    backlog = Backlog([source], Reached({}, -1), status, clock)
    backlog.follow(lambda: reached)
    backlog.poll()
    assert waiting(status) == 80
    reached = Reached({"offsets/3": committed, "offsets/4": planned}, 3)
    backlog.poll()
    assert waiting(status) == 80, "the batch is planned, and not committed"
    reached = Reached(reached.files, 4)
    backlog.poll()
    assert waiting(status) == 5
    assert source.asked == 1, "a commit is counted without asking the source"


def test_records_that_arrive_while_a_batch_runs_are_counted(status: DriverStatus) -> None:
    clock, source = Clock(), Log(a=100)
    backlog = Backlog([source], Reached({"offsets/0": offsets({"a": (0, 100)})}, 0), status, clock)
    backlog.poll()
    assert waiting(status) == 0
    source.ends["a"] = 5193
    clock.now += ASK_SECONDS / 2
    backlog.poll()
    assert (waiting(status), source.asked) == (0, 1), "the source is asked every few seconds"
    clock.now += ASK_SECONDS / 2
    backlog.poll()
    assert (waiting(status), source.asked) == (5093, 2)


def test_before_a_driver_has_restored_the_state_the_records_count_from_the_restored_positions(
    status: DriverStatus,
) -> None:
    first, second = Log(a=415_961), Log(b=30)
    replanned = {"offsets/7": offsets({"a": (0, 20)}, None), "offsets/8": offsets({"a": (20, 90)}, {"b": (12, 25)})}
    Backlog([first, second], Reached(replanned, 7), status, Clock()).poll()
    assert waiting(status) == 415_941 + 18, "a split that only the planned batch knows counts from its start"


def test_the_records_that_wait_are_known_by_source_and_split(status: DriverStatus) -> None:
    first, second, third = Log(a=415_961), Log(b=30), Log(b=5, c=50)
    record = offsets({"a": (0, 20)}, {"b": (12, 25)}, {"b": (0, 5), "c": (0, 10)})
    sources = [first, second, third]
    Backlog(sources, Reached({"offsets/7": record}, 7), status, Clock(), uids=["left", "right", "right"]).poll()
    left, right = status.heartbeat().metrics.source_lags
    assert (left.uid, left.lag_records, left.splits) == ("left", 415_941, {"a": 415_941})
    assert (right.uid, right.lag_records, right.splits) == ("right", 45, {"c": 40, "b": 5})


def test_before_the_first_batch_the_records_count_from_where_the_job_will_begin(status: DriverStatus) -> None:
    source = Log(a=100)
    backlog = Backlog([source], Reached({}, -1), status, Clock())
    backlog.poll()
    assert waiting(status) == 90


def test_while_the_sources_are_away_commits_still_count(status: DriverStatus, caplog: pytest.LogCaptureFixture) -> None:
    clock, source = Clock(), Log(a=100)
    files = {"offsets/0": offsets({"a": (0, 40)}), "offsets/1": offsets({"a": (40, 70)})}
    reached = Reached(files, 0)
    backlog = Backlog([source], reached, status, clock)
    source.is_away = True
    backlog.poll()
    assert waiting(status) is None, "the sources have never answered"
    clock.now += ASK_SECONDS
    backlog.poll()
    assert len(caplog.records) == 1, "the log names an outage once"
    source.is_away = False
    clock.now += ASK_SECONDS
    backlog.poll()
    assert waiting(status) == 60
    source.is_away = True
    backlog.follow(lambda: Reached(files, 1))
    clock.now += ASK_SECONDS
    backlog.poll()
    assert waiting(status) == 30
    assert len(caplog.records) == 2


def test_the_number_of_a_source_that_does_not_answer_has_the_age_of_the_last_answer() -> None:
    clock, source = Clock(), Log(a=100)
    status = DriverStatus(clock)
    backlog = Backlog([source], Reached({"offsets/0": offsets({"a": (0, 40)})}, 0), status, clock)
    backlog.poll()
    age_ms = lambda: status.heartbeat().metrics.lag_age_ms  # noqa: E731
    assert age_ms() == 0
    clock.now += ASK_SECONDS
    source.is_away = True
    backlog.poll()
    assert age_ms() == 0, "the sources are asked every few seconds"
    clock.now += LAG_AGE_S_MIN
    backlog.poll()
    assert age_ms() == 1000 * (ASK_SECONDS + LAG_AGE_S_MIN)
    clock.now += 1.5
    assert age_ms() == 1000 * (ASK_SECONDS + LAG_AGE_S_MIN + 1), "the source is still being asked"
    source.is_away = False
    clock.now += ASK_SECONDS
    backlog.poll()
    assert age_ms() == 0


def test_the_number_of_a_slow_source_is_as_old_as_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, source = Clock(), Log(a=100)
    latest = source.latest

    def slowly(positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        clock.now += LAG_AGE_S_MIN
        return latest(positions, limit)

    monkeypatch.setattr(source, "latest", slowly)
    status = DriverStatus(clock)
    Backlog([source], Reached({"offsets/0": offsets({"a": (0, 40)})}, 0), status, clock).poll()
    assert status.heartbeat().metrics.lag_age_ms == 1000 * LAG_AGE_S_MIN


def test_a_source_that_leaves_out_its_splits_has_nothing_that_waits(status: DriverStatus) -> None:
    source = Log(a=100)
    source.latest = lambda positions, limit: {}  # type: ignore[method-assign]  # noqa: ARG005
    Backlog([source], Reached({"offsets/0": offsets({"a": (0, 100)})}, 0), status, Clock()).poll()
    assert waiting(status) == 0


def test_the_count_of_the_records_that_wait_is_above_what_spark_says_of_its_last_batch() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    Backlog([Log(a=100)], Reached({"offsets/0": offsets({"a": (0, 60)})}, 0), status, clock).poll()
    status.sources_are_behind(3)
    status.waits_for_input(True)
    clock.now += IDLE_MS / 1000 + 1
    assert waiting(status) == 40, "a job with an interval waits although its sources have records"


@pytest.mark.parametrize(("reached", "expected"), [({"a": (0, 5)}, [(0.0, ["a"]), (30.0, ["a"])]), ({}, [(0.0, [])])])
def test_a_source_is_asked_for_new_splits_once_per_interval_and_where_a_job_begins_only_once(
    reached: dict[str, tuple[int, int]], expected: list[Any]
) -> None:
    asked: list[Any] = []
    now_s = [0.0]

    def discover(known: Any) -> dict[str, int]:
        asked.append((now_s[0], sorted(known)))
        return {}

    source: Any = SimpleNamespace(
        discovery_interval_ms=30_000, discover=discover, latest=lambda positions, _: {**positions}
    )
    waiting = WaitingRecords(source, lambda: now_s[0])
    committed = json.dumps(BatchPositions(reached).to_json()) if reached else None
    for now_s[0] in (0.0, 3.0, 29.9, 30.0, 31.0):
        waiting.ask(committed, None)
    assert asked == expected


def test_a_source_that_cannot_be_copied_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(source_reader._copies, "whole", pickle.dumps(Log(a=3)))
    monkeypatch.setitem(source_reader._copies, "broken", b"no pickle")
    assert isinstance(source_reader.source_of("whole"), Log)
    assert [source_reader.source_of(stream) for stream in ("broken", "kafka")] == [None, None]


def test_after_its_end_the_count_reports_no_number(status: DriverStatus) -> None:
    source = Log(a=100)
    backlog = Backlog([source], Reached({}, -1), status, Clock())
    backlog.end()
    backlog.poll()
    assert waiting(status) is None
    backlog.start()
    backlog._thread.join(60)
    assert source.is_closed


def test_the_count_waits_until_all_sources_have_answered(status: DriverStatus) -> None:
    """A sum of some sources would show too few records."""
    clock, first, second = Clock(), Log(a=100), Log(b=100)
    backlog = Backlog([first, second], Reached({}, -1), status, clock)
    second.is_away = True
    backlog.poll()
    assert waiting(status) is None
    second.is_away = False
    clock.now += ASK_SECONDS
    backlog.poll()
    assert waiting(status) == 180


def test_a_split_that_the_source_gets_while_nothing_is_read_counts_from_its_beginning(status: DriverStatus) -> None:
    clock, source = Clock(), Log(a=20)
    source.discovery_interval_ms = 3000
    backlog = Backlog([source], Reached({"offsets/0": offsets({"a": (0, 20)})}, 0), status, clock)
    backlog.poll()
    source.ends["b"] = 14
    clock.now += ASK_SECONDS
    backlog.poll()
    assert waiting(status) == 4


def test_a_loss_is_known_until_the_source_answers_again(status: DriverStatus) -> None:
    clock, source = Clock(), Log(a=20)
    backlog = Backlog([source], Reached({"offsets/0": offsets({"a": (0, 20)})}, 0), status, clock)

    def latest(*_: object) -> Mapping[str, Position]:
        raise SourceRecordsLostError("created again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "latest", latest)
        backlog.poll()
        assert backlog.loss == "created again"
    clock.now += ASK_SECONDS
    backlog.poll()
    assert backlog.loss is None


def test_a_job_has_begun_once_each_input_was_read(status: DriverStatus) -> None:
    files = {"offsets/0": offsets({"a": (0, 20)}, None), "offsets/1": offsets({"a": (20, 20)}, {"b": (0, 0)})}
    reached = Reached(files, -1)
    backlog = Backlog([Log(a=20), Log(b=0)], reached, status, Clock())
    backlog.follow(lambda: reached)
    seen = []
    for batch in (-1, 0, 1):
        reached = Reached(files, batch)
        seen.append(backlog.has_begun)
    assert seen == [False, False, True]


def test_a_source_that_cannot_count_ends_the_count_and_not_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(a=12)
    backlog = Backlog([log], Reached({}, -1), DriverStatus(), Clock())
    monkeypatch.setattr(backlog_module, "_POLL_SECONDS", 0)
    polls: list[int] = []

    def poll() -> None:
        polls.append(len(polls))
        if len(polls) == 3:
            raise TypeError("a position of another kind")

    monkeypatch.setattr(backlog, "poll", poll)
    backlog._run()
    assert (polls, log.is_closed) == ([0, 1, 2], True)
    assert caplog.messages == ["the records that wait cannot be counted"]


def test_a_count_that_is_ended_polls_no_more_and_closes_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(a=12)
    backlog = Backlog([log], Reached({}, -1), DriverStatus(), Clock())
    monkeypatch.setattr(backlog, "poll", backlog.end)
    backlog._run()
    assert log.is_closed
    assert backlog.counts
    assert not Backlog([], Reached({}, -1), DriverStatus(), Clock()).counts
