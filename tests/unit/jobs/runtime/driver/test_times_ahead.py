"""A record with a time far in the future is late itself, and makes no other record late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale import TumblingWindows
from keyscale.clock import now_ms
from keyscale.identifiers import OperatorUid
from tests.support.rehearsal.keyed_rehearsal import OPERATOR, SINK, declared_rehearsal

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.functions.process_function import Row
    from keyscale.jobs.streams.streams import DataStream, KeyedStream
    from tests.support.rehearsal.rehearsal import Rehearsal

HOUR_MS = 3_600_000
IN_2099_MS = 4_070_908_800_000


def last_of_each_hour(keyed: KeyedStream) -> DataStream:
    def last(left: Row, right: Row) -> Row:
        return max(left, right)

    return keyed.window(TumblingWindows(HOUR_MS)).reduce(last)


def hours(directory: Path, **times: Any) -> Rehearsal:
    """A job over three hours before now, with a record of 2099 in the first."""
    first_ms = (now_ms() // HOUR_MS - 5) * HOUR_MS
    batches = [
        [("a", first_ms + 1), ("b", IN_2099_MS)],
        [("a", first_ms + 2), ("a", first_ms + HOUR_MS)],
        [("a", first_ms + HOUR_MS + 1)],
        [("a", first_ms + 3 * HOUR_MS)],
    ]
    return declared_rehearsal(directory, last_of_each_hour, batches, **times)


def emitted(job: Rehearsal) -> list[tuple[str, int]]:
    return [(row["key"], row["at"] % HOUR_MS) for row in job.output(SINK)]


def test_a_record_of_2099_makes_no_later_record_late(tmp_path: Path) -> None:
    job = hours(tmp_path)
    job.start(1)
    job.run_batches(2)
    job.start(2)
    job.run_batches(2)
    job.fire_timers()
    assert emitted(job) == [("a", 2), ("a", 1)]
    assert job.counters.late_records == 1


def test_without_a_limit_the_watermark_follows_any_record(tmp_path: Path) -> None:
    job = hours(tmp_path, max_ahead_ms=None)
    job.start(1)
    job.run_batches(4)
    job.fire_timers()
    assert emitted(job) == [("a", 2), ("a", 0)], "without the later record of its hour"
    assert job.counters.late_records == 2


def test_a_record_at_the_limit_is_in_time(tmp_path: Path) -> None:
    hour_ms = now_ms() // HOUR_MS * HOUR_MS
    batches = [[("a", hour_ms + 23 * HOUR_MS)], [("b", hour_ms)]]
    job = declared_rehearsal(tmp_path, last_of_each_hour, batches)
    job.start(1)
    job.run_batches(2)
    assert job.counters.late_records == 0
    job = declared_rehearsal(tmp_path / "narrow", last_of_each_hour, batches, max_ahead_ms=22 * HOUR_MS)
    job.start(1)
    job.run_batches(2)
    assert job.counters.late_records == 1


def test_a_corrected_program_begins_time_again_once(tmp_path: Path) -> None:
    job = hours(tmp_path, max_ahead_ms=None)
    job.start(1)
    job.run_batches(2)
    poisoned = job.checkpoint("before")
    job.topology = hours(tmp_path).topology
    job.start(2, poisoned, time_reset_after=1)
    assert job.time.event_times == {}
    job.run_batches(1)
    assert job.time.event_times[OperatorUid(OPERATOR)].watermark_ms is None
    job.start(1, poisoned, time_reset_after=1)
    assert job.time.event_times != {}
    job.run_batches(1)
    job.fire_timers()
    assert emitted(job) == [("a", 2), ("a", 0), ("a", 1)], "the second hour is emitted again"
    assert job.counters.late_records == 0


def test_without_new_time_a_corrected_program_finds_all_records_late(tmp_path: Path) -> None:
    job = hours(tmp_path, max_ahead_ms=None)
    job.start(1)
    job.run_batches(2)
    poisoned = job.checkpoint("before")
    job.topology = hours(tmp_path).topology
    job.start(1, poisoned)
    job.run_batches(2)
    assert job.counters.late_records == 2
