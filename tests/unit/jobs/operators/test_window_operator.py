"""Windows emit the result of a plain fold once, when they are complete, for any parallelism and batches."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale import (
    AggregateFunction,
    OutputTag,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    TimeDomain,
    TumblingWindows,
    Window,
)
from keyscale.jobs.errors import InvalidTopologyError
from keyscale.jobs.functions.windows import merged
from keyscale.jobs.operators.window_contents import Aggregated, Collected, Reduced
from keyscale.jobs.operators.window_operator import Windowing
from keyscale.jobs.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale import Row

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
WINDOW = {"user": "string", "window_start": "bigint", "window_end": "bigint"}
LATE = OutputTag("late", SCHEMA)
TIMES = st.integers(-50, 50)
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), TIMES, st.integers(1, 9)), max_size=25)
END = 10_000


class Total(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Row, accumulator: int) -> int:
        return accumulator + value.amount

    def get_result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)

    def merge(self, left: int, right: int) -> int:
        return left + right


class All(ProcessWindowFunction):
    def process(self, key: Any, window: Window, elements: Sequence[Row]) -> list[dict[str, Any]]:
        return [{"text": f"{key} {window.start} {[row.amount for row in elements]}"}]


TOTAL = Aggregated(Total(), pa.int64())


def harness(assigner: Any, contents: Any = TOTAL, parallelism: int = 1, **options: Any) -> OperatorHarness:
    result = {"text": "string"} if isinstance(contents, Collected) else {"total": "bigint"}
    if isinstance(contents, Reduced):
        result = {"at": "bigint", "amount": "bigint"}
    return OperatorHarness(
        Windowing(assigner, contents, **{"late_output": "late", **options}),
        input=SCHEMA,
        key=["user"],
        output={**WINDOW, **result},
        timestamp="at",
        side_outputs=[LATE],
        parallelism=parallelism,
    )


def totals(assigner: Any, records: list[Any]) -> list[tuple[Any, ...]]:
    windows: dict[tuple[str, Window], int] = defaultdict(int)
    for user, at, amount in records:
        for window in assigner.assign(at):
            windows[user, window] += amount
    return sorted((user, *window, total) for (user, window), total in windows.items())


def session_totals(gap_ms: int, records: list[Any]) -> list[tuple[Any, ...]]:
    expected = []
    for user in "ab":
        session: list[int] = []
        for at, amount in sorted((at, amount) for name, at, amount in records if name == user):
            if session and at <= session[1]:
                session = [session[0], at + gap_ms, session[2] + amount]
            else:
                expected += [(user, *session)] if session else []
                session = [at, at + gap_ms, amount]
        expected += [(user, *session)] if session else []
    return sorted(expected)


@given(TIMES, st.integers(1, 30), st.integers(1, 30), st.integers(-40, 40))
def test_a_record_is_in_every_window_that_contains_its_time(at: int, size: int, slide: int, offset: int) -> None:
    windows = SlidingWindows(size, slide, offset).assign(at)
    starts = [start for start in range(at - size + 1, at + 1) if (start - offset) % slide == 0]
    assert sorted(windows) == [Window(start, start + size) for start in starts]
    assert TumblingWindows(size, offset).assign(at) == SlidingWindows(size, size, offset).assign(at)


@pytest.mark.parametrize(
    "assigner", [TumblingWindows(10), TumblingWindows(7, 3), SlidingWindows(10, 4), SlidingWindows(3, 5)]
)
@settings(max_examples=40)
@given(batches=st.lists(RECORDS, max_size=3), parallelism=st.integers(1, 3))
def test_complete_windows_are_a_plain_fold(assigner: Any, batches: list[list[Any]], parallelism: int) -> None:
    tested = harness(assigner, parallelism=parallelism)
    for records in batches:
        tested.process(*records)
        tested = tested.restored(tested.snapshot(), parallelism=4 - parallelism)
    tested.advance_watermark(END)
    assert sorted(tested.take_output()) == totals(assigner, [record for records in batches for record in records])
    assert tested.snapshot().families.get("window_contents", []) == []
    assert tested.snapshot().families.get("_event_timers", []) == []


@settings(max_examples=40)
@given(batches=st.lists(RECORDS, max_size=3), parallelism=st.integers(1, 3))
def test_sessions_are_a_plain_fold_in_any_order_of_arrival(batches: list[list[Any]], parallelism: int) -> None:
    tested = harness(SessionWindows(5), parallelism=parallelism)
    for records in batches:
        tested.process(*records)
        tested = tested.restored(tested.snapshot(), parallelism=4 - parallelism)
    tested.advance_watermark(END)
    assert sorted(tested.take_output()) == session_totals(5, [record for records in batches for record in records])
    left = tested.snapshot().families
    assert [name for name, entries in left.items() if entries] == []


def test_a_window_is_emitted_when_the_watermark_reaches_its_last_millisecond() -> None:
    tested = harness(TumblingWindows(10))
    tested.process(("a", 3, 1), ("a", 9, 2), ("a", 10, 4))
    tested.advance_watermark(8)
    assert tested.take_output() == []
    tested.advance_watermark(9)
    assert tested.take_output() == [("a", 0, 10, 3)]


@pytest.mark.parametrize("watermark_ms", [9, 50])
def test_a_late_record_fires_its_window_again_until_the_lateness_is_over(watermark_ms: int) -> None:
    tested = harness(TumblingWindows(10), allowed_lateness_ms=100)
    tested.process(("a", 3, 1))
    tested.advance_watermark(watermark_ms)
    assert tested.take_output() == [("a", 0, 10, 1)]
    tested.process(("a", 4, 2), ("a", 5, 3))
    assert tested.take_output() == [("a", 0, 10, 3), ("a", 0, 10, 6)]
    tested.advance_watermark(109)
    tested.process(("a", 6, 4))
    assert tested.take_output() == []
    assert tested.take_side_output(LATE) == [("a", 6, 4)]
    assert not any(tested.snapshot().families.values())


@pytest.mark.parametrize("assigner", [TumblingWindows(60_000), SlidingWindows(60_000, 30_000), SessionWindows(60_000)])
def test_a_record_may_be_days_late_and_early_and_late_firings_go_together(assigner: Any) -> None:
    day_ms = 86_400_000
    tested = harness(assigner, allowed_lateness_ms=3 * day_ms, early_every_ms=1000)
    tested.process(("a", 50_000, 1))
    tested.advance_processing_time(1000)
    early = tested.take_output()
    assert {row.total for row in early} == {1}
    tested.advance_watermark(3 * day_ms)
    assert sorted(tested.take_output()) == sorted(early)
    tested = tested.restored(tested.snapshot(), parallelism=3)
    tested.process(("a", 50_001, 2))
    late = tested.take_output()
    assert {row.total for row in late} == {3}
    assert len(late) == len(early)
    tested.advance_watermark(3 * day_ms + 200_000)
    tested.process(("a", 50_002, 4))
    assert tested.take_output() == []
    assert tested.take_side_output(LATE) == [("a", 50_002, 4)]
    assert not any(entries for name, entries in tested.snapshot().families.items() if name != "_processing_timers")


def test_records_without_an_event_time_are_late_and_counted() -> None:
    tested = harness(TumblingWindows(10))
    tested.process(("a", None, 1), ("a", 5, 2))
    assert tested.take_side_output(LATE) == [("a", None, 1)]
    assert tested.late_records == 1


def test_late_records_are_counted_even_without_a_late_output() -> None:
    tested = harness(TumblingWindows(10), late_output=None)
    tested.advance_watermark(9)
    tested.process(("a", 3, 1), ("a", None, 1), ("a", 10, 1))
    assert tested.late_records == 2


def test_a_record_between_two_windows_is_in_none_and_not_late_unless_its_time_has_passed() -> None:
    tested = harness(SlidingWindows(size_ms=10, slide_ms=30))
    tested.process(("a", 5, 1), ("a", 15, 2))
    assert tested.take_side_output(LATE) == []
    tested.advance_watermark(20)
    assert tested.take_output() == [("a", 0, 10, 1)]
    tested.process(("a", 16, 4), ("a", 21, 8))
    assert tested.take_side_output(LATE) == [("a", 16, 4)]
    assert tested.late_records == 1


@pytest.mark.parametrize("assigner", [TumblingWindows(10), SessionWindows(10)])
def test_a_lateness_beyond_the_end_of_time_keeps_windows_until_then(assigner: Any) -> None:
    tested = harness(assigner, allowed_lateness_ms=2**63 - 1)
    tested.process(("a", 3, 1))
    tested.advance_watermark(2**40)
    assert len(tested.take_output()) == 1
    tested.process(("a", 4, 2))
    assert [row.total for row in tested.take_output()] == [3]
    assert tested.late_records == 0


def test_a_late_record_may_extend_a_session_that_is_not_over() -> None:
    tested = harness(SessionWindows(10))
    tested.process(("a", 10, 1))
    tested.advance_watermark(14)
    tested.process(("a", 4, 2), ("a", -10, 4))
    assert tested.take_side_output(LATE) == [("a", -10, 4)]
    tested.advance_watermark(19)
    assert tested.take_output() == [("a", 4, 20, 3)]


def test_early_firing_emits_present_results_by_processing_time() -> None:
    tested = harness(TumblingWindows(10), early_every_ms=1000)
    tested.advance_processing_time(500)
    tested.process(("a", 1, 1))
    tested.advance_processing_time(1000)
    tested.process(("a", 2, 2))
    tested.advance_processing_time(1999)
    assert tested.take_output() == [("a", 0, 10, 1)]
    tested.advance_processing_time(2000)
    tested.advance_watermark(9)
    tested.advance_processing_time(9000)
    assert tested.take_output() == [("a", 0, 10, 3), ("a", 0, 10, 3)]


def test_windows_by_the_clock_fire_early_up_to_their_end() -> None:
    tested = harness(TumblingWindows(1000, time_domain=TimeDomain.PROCESSING), early_every_ms=300)
    tested.advance_processing_time(1500)
    tested.process(("a", None, 1))
    tested.advance_processing_time(1799)
    assert tested.take_output() == []
    tested.advance_processing_time(1800)
    tested.process(("a", None, 2))
    tested.advance_processing_time(1998)
    assert tested.take_output() == [("a", 1000, 2000, 1)]
    tested.advance_processing_time(1999)
    assert tested.take_output() == [("a", 1000, 2000, 3)]
    assert not any(tested.snapshot().families.values())


def test_a_complete_window_that_is_kept_for_late_records_does_not_go_on_to_fire_early() -> None:
    tested = harness(TumblingWindows(10), allowed_lateness_ms=100, early_every_ms=1000)
    tested.process(("a", 3, 1))
    tested.advance_watermark(9)
    tested.process(("a", 4, 2))
    tested.advance_processing_time(1000)
    tested.take_output()
    assert tested.snapshot().families["_processing_timers"] == []
    tested.advance_processing_time(5000)
    assert tested.take_output() == []


def test_the_early_timer_of_a_session_that_another_one_has_taken_in_ends() -> None:
    tested = harness(SessionWindows(10), early_every_ms=1000)
    tested.process(("a", 0, 1))
    tested.process(("a", 5, 2))
    tested.advance_processing_time(1000)
    assert tested.take_output() == [("a", 0, 15, 3)]
    assert len(tested.snapshot().families["_processing_timers"]) == 1


def test_a_window_function_gets_a_key_of_several_columns_as_a_tuple() -> None:
    tested = OperatorHarness(
        Windowing(TumblingWindows(10), Collected(All(), SCHEMA)),
        input=SCHEMA,
        key=["user", "amount"],
        output={"user": "string", "amount": "bigint", **WINDOW, "text": "string"},
        timestamp="at",
    )
    tested.process(("a", 1, 7), ("a", 2, 8))
    tested.advance_watermark(9)
    assert sorted(tested.take_output()) == [("a", 7, 0, 10, "('a', 7) 0 [7]"), ("a", 8, 0, 10, "('a', 8) 0 [8]")]


def test_windows_by_processing_time_need_no_event_time() -> None:
    tested = harness(TumblingWindows(1000, time_domain=TimeDomain.PROCESSING))
    tested.advance_processing_time(1500)
    tested.process(("a", None, 1), ("a", 3, 2))
    tested.advance_processing_time(1998)
    assert tested.take_output() == []
    tested.advance_processing_time(1999)
    assert tested.take_output() == [("a", 1000, 2000, 3)]


def test_a_function_sees_all_records_of_a_window_even_of_merged_sessions() -> None:
    tested = harness(SessionWindows(5), Collected(All(), SCHEMA))
    tested.process(("a", 1, 1), ("a", 10, 2), ("b", 3, 3))
    tested.process(("a", 5, 4))
    tested.advance_watermark(END)
    assert sorted(tested.take_output()) == [("a", 1, 15, "a 1 [1, 2, 4]"), ("b", 3, 8, "b 3 [3]")]


def test_a_reduction_keeps_one_record_per_window() -> None:
    def larger(left: Row, right: Row) -> Row:
        return left if left.amount >= right.amount else right

    tested = harness(SessionWindows(5), Reduced(larger, SCHEMA))
    tested.process(("a", 1, 1), ("a", 9, 7))
    tested.process(("a", 5, 4))
    tested.advance_watermark(END)
    assert tested.take_output() == [("a", 1, 14, 9, 7)]


@given(st.lists(st.tuples(TIMES, st.integers(1, 9)), min_size=1, max_size=10))
def test_merging_leaves_out_sessions_that_do_not_touch(spans: list[tuple[int, int]]) -> None:
    sessions: list[Window] = []
    for start, size in spans:
        session, touched = merged(Window(start, start + size), sessions)
        sessions = [each for each in sessions if each not in touched] + [session]
    ordered = sorted(sessions)
    assert all(before.end < after.start for before, after in itertools.pairwise(ordered))
    covered = {time for start, size in spans for time in range(start, start + size)}
    assert covered <= {time for session in sessions for time in range(*session)}


@pytest.mark.parametrize("make", [lambda: TumblingWindows(0), lambda: SlidingWindows(1, -1), lambda: SessionWindows(0)])
def test_windows_without_size_are_refused(make: Any) -> None:
    with pytest.raises(InvalidTopologyError, match="above zero"):
        make()
