"""A subtask's batch has one order of steps, and its progress says what came from where and until when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.jobs.functions.subtask_info import SecondInputInfo, SplitInfo, SubtaskInfo
from keyscale.jobs.operators.operator_contract import (
    KEY_GROUP_COLUMN,
    ORIGIN_COLUMN,
    Operator,
    OperatorLogic,
    SideBatch,
    SubtaskProgress,
    run_subtask,
)
from keyscale.jobs.operators.two_inputs import packed_batch
from keyscale.state.doors.keyed import BatchClock, NextTimers, OperatorStateBackend
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import KeyTooLargeError
from keyscale.state.keyed.backend import KeyedStateBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.jobs.operators.operator_contract import OutputBatch

INFO = SubtaskInfo(
    operator_uid=OperatorUid("tested"),
    subtask=SubtaskIndex(0),
    parallelism=1,
    max_parallelism=16,
    attempt=Attempt(1),
    input_columns=("id", "at", "part"),
    key_columns=("id",),
    timestamp_column="at",
    output_schema=pa.schema([("id", pa.string())]),
)
OF_TWO = replace(
    INFO,
    origins=("orders", "operator:events"),
    splits={"operator:events": SplitInfo("operator:events(part)", ("part",))},
)


def batch(*records: tuple[int | None, int, int, int], key: str = "k") -> pa.RecordBatch:
    """Returns records of a time, a part, a key group and the number of an origin."""
    times, parts, groups, origins = zip(*records, strict=True)
    return pa.record_batch(
        {
            "id": [key] * len(records),
            "at": pa.array(times, pa.int64()),
            "part": pa.array(parts, pa.int64()),
            KEY_GROUP_COLUMN: pa.array(groups, pa.int32()),
            ORIGIN_COLUMN: pa.array(origins, pa.int32()),
        }
    )


def test_records_are_counted_and_timed_by_origin_split_and_key_group() -> None:
    progress = SubtaskProgress()
    first = batch((10, 1, 3, 0), (50, 1, 0, 1), (40, 2, 3, 1), (None, 3, 3, 1), (1001, 2, 1, 1), (1000, 4, 1, 1))
    progress.saw_batch(first, OF_TWO, "at", 1000)
    progress.saw_batch(batch((20, 9, 7, 0), (5, 9, 7, 0)), OF_TWO, "at", 1000)
    progress.saw_batch(batch((60, 2, 3, 1), (45, 1, 0, 1)), OF_TWO, "at", 1000)
    assert (progress.input_records, progress.ahead_records, progress.latest_event_ms) == (10, 1, 1000)
    assert progress.records_of_origins == {"orders": 3, "operator:events": 7}
    assert progress.latest_of_origins == {"orders": 20, "operator:events": 1000}
    assert progress.latest_of_splits == {"operator:events(part)": {"1": 50, "2": 60, "4": 1000}}
    assert progress.key_group_records.tolist() == [2, 2, 0, 4, 0, 0, 0, 2]
    assert (progress.largest_key_group, progress.largest_key_group_records) == (3, 4)


def test_an_only_origin_has_its_time_and_splits_without_a_name() -> None:
    info = replace(INFO, splits={"source": SplitInfo("source(part)", ("part",))})
    progress = SubtaskProgress()
    progress.saw_batch(batch((30, 1, 0, 0), (9, 2, 2, 0), (2000, 2, 2, 0)), info, "at", None)
    progress.saw_batch(batch((20, 1, 0, 0), (None, 7, 0, 0)), info, "at", None)
    assert (progress.latest_event_ms, progress.latest_of_origins, progress.records_of_origins) == (2000, {}, {})
    assert progress.latest_of_splits == {"source(part)": {"1": 30, "2": 2000}}
    timeless = SubtaskProgress()
    timeless.saw_batch(batch((30, 1, 0, 1), (9, 2, 2, 1)), OF_TWO, None, 5)
    assert (timeless.latest_event_ms, timeless.ahead_records, timeless.latest_of_splits) == (None, 0, {})
    assert timeless.records_of_origins == {"orders": 0, "operator:events": 2}
    assert (SubtaskProgress().largest_key_group, SubtaskProgress().largest_key_group_records) == (None, 0)


def test_the_sixteen_largest_key_groups_are_told_largest_first() -> None:
    progress = SubtaskProgress(key_group_records=np.array([0, 5, *range(1, 20), 0], np.int64))
    found = progress.largest_key_groups()
    assert list(found.items())[:2] == [(20, 19), (19, 18)]
    assert (len(found), min(found.values()), found[6]) == (16, 5, 5)
    assert SubtaskProgress(key_group_records=np.array([0, 2, 0], np.int64)).largest_key_groups() == {1: 2}


@dataclass
class Noting(Operator, OperatorLogic):
    """An operator that notes each call, with the times that it sees."""

    clock: BatchClock
    calls: list[Any] = field(default_factory=list)
    fails: bool = False
    failed = None

    def note(self, *what: Any) -> None:
        self.calls.append((*what, self.clock.event_time_ms, self.clock.timers_ms))

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> Operator:  # noqa: ARG002
        return self

    def start_with(self, state: KeyedStateBackend, info: SubtaskInfo, operator_state: OperatorStateBackend) -> Operator:
        self.calls.append(("start", info.subtask, isinstance(operator_state, OperatorStateBackend)))
        return self.start(state, info)

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        self.note("process", batch.num_rows)
        yield batch
        yield SideBatch("late", batch.slice(1))

    def process_second(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        self.note("second", batch.num_rows)
        yield batch

    def process_broadcast(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        self.note("broadcast", batch.num_rows)
        yield batch

    def divert(self, batch: pa.RecordBatch, row: int, error: Exception) -> None:
        assert isinstance(error, KeyTooLargeError)
        self.note("divert", batch["key"][row].as_py()[:3])

    def fire(self) -> Iterator[OutputBatch]:
        self.note("fire")
        if self.fails:
            raise ValueError
        self.counts["fired"] += 2
        yield from ()

    def next_times(self) -> NextTimers:
        self.note("next")
        return NextTimers(5, 7)

    def close(self) -> None:
        self.note("close")


def run(
    noting: Noting, info: SubtaskInfo, batches: list[pa.RecordBatch], **options: Any
) -> tuple[int, SubtaskProgress]:
    state = KeyedStateBackend(HeapEngine(), pa.schema([("id", pa.string())]), noting.clock)
    progress = SubtaskProgress()
    outputs = list(run_subtask(noting, state, info, batches, progress=progress, **options))
    return len(outputs), progress


def test_a_batch_is_processed_at_the_watermark_before_it_and_fires_at_its_own() -> None:
    noting = Noting(BatchClock(event_time_ms=10))
    one = batch((30, 1, 0, 0), (40, 1, 0, 0))
    emitted, progress = run(noting, INFO, [one], watermark_ms=25, broadcast=[one.slice(1)])
    assert noting.calls == [
        ("start", 0, True),
        ("broadcast", 1, 10, 10),
        ("process", 2, 10, 10),
        ("fire", 25, 25),
        ("next", 25, 25),
        ("close", 25, 25),
    ]
    assert (emitted, progress.output_records, progress.input_records) == (3, 4, 2)
    assert (progress.next_timers, progress.counts["fired"], noting.clock.latest_event_ms) == (NextTimers(5, 7), 2, 40)


@pytest.mark.parametrize("fails", [False, True])
def test_all_timers_fire_at_the_end_of_input_and_at_no_later_time(fails: bool) -> None:
    noting = Noting(BatchClock(event_time_ms=10), fails=fails)
    if fails:
        with pytest.raises(ValueError, match=r"^$"):
            run(noting, INFO, [], is_at_end=True)
    else:
        run(noting, INFO, [], is_at_end=True)
    _, at_ms, timers_ms = noting.calls[1]
    assert (at_ms, timers_ms > 2**60) == (10, True)
    assert (noting.clock.is_at_end, noting.clock.timers_ms, len(noting.calls)) == (False, 10, 2 if fails else 4)


def test_each_input_has_its_own_columns_limit_and_process() -> None:
    second = SecondInputInfo(("key", "when"), ("key",), "when", 700)
    info = replace(INFO, second=second, max_ahead_ms=100, failed_records="drop")
    noting = Noting(BatchClock(processing_time_ms=1000))
    large = "x" * 70_000
    first = batch((1100, 1, 0, 0), (1101, 1, 3, 0)).drop_columns([ORIGIN_COLUMN])
    other = pa.record_batch(
        {
            "key": ["b", large],
            "when": pa.array([1700, 1701], pa.int64()),
            KEY_GROUP_COLUMN: pa.array([1, 1], pa.int32()),
        }
    )
    _, progress = run(noting, info, [packed_batch(first, 0), packed_batch(other, 1)])
    assert [call[:2] for call in noting.calls] == [
        ("start", 0),
        ("process", 2),
        ("divert", "xxx"),
        ("second", 1),
        ("fire", noting.clock.event_time_ms),
        ("next", noting.clock.event_time_ms),
        ("close", noting.clock.event_time_ms),
    ]
    assert (progress.latest_event_ms, progress.ahead_records, progress.input_records) == (1700, 2, 4)
    assert progress.counts["dead_letters"] == 1
    assert progress.first_failure is not None
    assert "key 'xxx" in progress.first_failure
    assert progress.key_group_records.tolist() == [1, 2, 0, 1]
    with pytest.raises(KeyTooLargeError, match="key 'xxx"):
        run(Noting(BatchClock()), replace(info, failed_records="fail"), [packed_batch(other, 1)])
