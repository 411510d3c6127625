"""Results of a function become Arrow columns exactly, or are refused without quoting the data."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.jobs.errors import OutputTypeError
from keyscale.jobs.functions.process_function import row_type
from keyscale.jobs.operators.column_values import (
    RESULT_BYTES_MAX,
    RESULTS_MAX,
    BatchSize,
    batch_of,
    combined,
    latest_by_ms,
    rows_that_pass,
    timestamps_ms,
    tuples_of,
    up_to_ms,
)

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64())])
RECORDS = st.lists(st.tuples(st.none() | st.text(), st.none() | st.integers(-(2**63), 2**63 - 1)))


@given(RECORDS.filter(bool))
def test_dicts_and_tuples_give_the_same_batch_and_survive_a_round_trip(records: list[tuple[Any, ...]]) -> None:
    as_dicts = [dict(zip(("count", "name"), reversed(record), strict=True)) for record in records]
    assert batch_of(records, SCHEMA) == batch_of(as_dicts, SCHEMA)
    assert list(tuples_of(batch_of(records, SCHEMA), ("name", "count"))) == records


def test_batches_of_results_grow_up_to_a_number_of_rows_and_of_bytes() -> None:
    size = BatchSize()
    assert (size.rows, RESULTS_MAX) == (16, 10_000)
    rows = []
    for text in ("", "", "x" * (RESULT_BYTES_MAX // 4), "x" * (2 * RESULT_BYTES_MAX)):
        size.of(pa.record_batch({"text": pa.array([text, text])}))
        rows.append(size.rows)
    assert rows == [16 * 32, RESULTS_MAX, 3, 1]


def test_rows_pass_unconverted_only_if_they_cannot_have_been_changed() -> None:
    tags = pa.schema([("name", pa.string()), ("tags", pa.list_(pa.string()))])
    cases = [
        (SCHEMA, SCHEMA, True),
        (SCHEMA, tags, False),
        (tags, tags, False),
        (SCHEMA, pa.schema([SCHEMA.field(0)]), False),
    ]
    for columns, output, passes in cases:
        batch = pa.RecordBatch.from_pylist([], schema=columns)
        assert (rows_that_pass(batch, output) is not None) is passes


def test_dicts_tuples_and_rows_may_be_mixed() -> None:
    row = row_type(("name", "count"))(("c", 3))
    assert batch_of([("a", 1), {"name": "b", "count": 2}, row], SCHEMA).num_rows == 3


@pytest.mark.parametrize(
    ("results", "what"),
    [
        ([{"name": "secret"}], "without the column 'count'"),
        ([{"name": "secret", "count": 1, "secret": 2}], "with 1 column that the declaration lacks"),
        ([("secret", 1), {"name": "secret", "other": 2}], "'count' and with 1 column that the declaration lacks"),
        ([("secret",)], "1 value for the 2 columns"),
        (["secret"], "a result is a str"),
        ([("secret", "secret")], "'count' is declared int64: a str is not"),
        ([("secret", 2**70)], "'count' is declared int64"),
        ([(object(), 1)], "'name' is declared string: an object is not"),
    ],
)
def test_results_that_do_not_fit_are_refused_without_their_content(results: list[Any], what: str) -> None:
    with pytest.raises(OutputTypeError, match=what) as refusal:
        batch_of(results, SCHEMA)
    assert "secret" not in str(refusal.value)
    assert refusal.value.__context__ is None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_are_milliseconds(unit: str) -> None:
    times = [dt.datetime(2013, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC), None]
    batch = pa.record_batch({"at": pa.array(times, pa.timestamp(unit, "UTC"))})
    assert timestamps_ms(batch, "at") == [1_356_998_400_000, -1000, None]


def test_a_time_before_the_epoch_is_rounded_down() -> None:
    batch = pa.record_batch({"at": pa.array([-1, -1000, -1001], pa.timestamp("us", "UTC"))})
    assert timestamps_ms(batch, "at") == [-1, -1, -2]


def test_an_integer_column_holds_milliseconds() -> None:
    assert timestamps_ms(pa.record_batch({"at": pa.array([7, None])}), "at") == [7, None]


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=9), st.integers(1, 12), st.integers(1, 100))
def test_combined_batches_hold_the_same_rows_in_order_and_stop_growing_at_the_limits(
    parts: list[list[int]], rows_max: int, bytes_max: int
) -> None:
    batches = [pa.record_batch({"n": pa.array(part, pa.int64())}) for part in parts]
    whole = list(combined(batches, rows_max, bytes_max))
    assert [n for batch in whole for n in batch.column("n").to_pylist()] == [n for part in parts for n in part]
    assert all(batch.num_rows for batch in whole)
    largest = max(map(len, parts), default=0)
    assert all(batch.num_rows < rows_max + largest for batch in whole)
    assert all(batch.num_rows * 8 < bytes_max + largest * 8 for batch in whole)


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ns")])
def test_the_latest_time_by_other_columns_is_in_milliseconds_whatever_the_column_is(kind: pa.DataType) -> None:
    seconds = [3, 5, None, -1, 4, None]
    times = pa.array([None if each is None else each * 1000 for each in seconds], pa.int64())
    column = times if kind == pa.int64() else times.cast(pa.timestamp("ms")).cast(kind)
    batch = pa.record_batch(
        {
            "at": column,
            "topic": ["a", "a", "a", "b/b", None, "c"],
            "part": pa.array([0, 0, 1, 0, 0, 0], pa.int32()),
        }
    )
    assert latest_by_ms(batch, "at", ["topic", "part"]) == {"a/0": 5000, "b\\/b/0": -1000, "None/0": 4000}
    assert latest_by_ms(batch.slice(0, 0), "at", ["topic"]) == {}


@pytest.mark.parametrize("kind", [pa.int64(), *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns"))])
def test_later_times_go_to_the_millisecond_and_records_without_a_time_stay(kind: pa.DataType) -> None:
    times = pa.array([None, 1000, 2000, 3000], pa.int64())
    times = times if kind == pa.int64() else times.cast(pa.timestamp("ms")).cast(kind)
    batch = pa.record_batch({"at": times, "name": pa.array(["none", "one", "two", "three"])})
    assert up_to_ms(batch, "at", 2000)["name"].to_pylist() == ["none", "one", "two"]
    assert up_to_ms(batch, "at", 1999)["name"].to_pylist() == ["none", "one"]
    assert up_to_ms(batch, "at", 1 << 62)["name"].to_pylist() == ["none", "one", "two", "three"]


def test_a_part_of_a_millisecond_belongs_to_it() -> None:
    batch = pa.record_batch({"at": pa.array([1_999_999, 2_000_000], pa.timestamp("us"))})
    assert up_to_ms(batch, "at", 1999).num_rows == 1
