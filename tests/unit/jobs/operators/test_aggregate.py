"""Reductions, aggregations and batch functions equal plain folds, for any batches and parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale import AggregateFunction, KeyedBatchFunction, Ttl, ValueStateDescriptor
from keyscale.jobs.errors import InvalidSchemaError, OutputTypeError
from keyscale.jobs.graph.schemas import keyed_schema
from keyscale.jobs.operators.aggregate import Aggregate, Reduce
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.state.errors import SerializationError

if TYPE_CHECKING:
    from keyscale import KeyedBatch, Row, RuntimeContext

INPUT = {"user": "string", "amount": "bigint"}
OUTPUT = {"user": "string", "count": "bigint", "mean": "double"}
RECORDS = st.lists(
    st.tuples(st.none() | st.sampled_from(["", "a", "b"]), st.integers(-100, 100)), min_size=1, max_size=20
)
BATCHES = st.lists(RECORDS, max_size=3)


class Mean(AggregateFunction):
    def create_accumulator(self) -> dict[str, int]:
        return {"count": 0, "sum": 0}

    def add(self, value: Row, accumulator: dict[str, int]) -> dict[str, int]:
        accumulator["count"] += 1
        accumulator["sum"] += value.amount
        return accumulator

    def get_result(self, accumulator: dict[str, int]) -> dict[str, Any]:
        return {"count": accumulator["count"], "mean": accumulator["sum"] / accumulator["count"]}

    def merge(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        return {name: left[name] + right[name] for name in left}


MEAN = Aggregate(Mean(), pa.struct([("count", pa.int64()), ("sum", pa.int64())]), None)


def added(left: Row, right: Row) -> tuple[Any, ...]:
    return left.user, left.amount + right.amount


@given(BATCHES, st.integers(1, 3))
def test_a_reduction_emits_the_running_value_after_each_record(batches: list[list[Any]], parallelism: int) -> None:
    harness = OperatorHarness(Reduce(added, None), input=INPUT, key=["user"], output=INPUT, parallelism=parallelism)
    totals: dict[str | None, int] = {}
    for records in batches:
        expected = []
        for user, amount in records:
            totals[user] = totals.get(user, 0) + amount
            expected.append((user, totals[user]))
        harness.process(*records)
        found = harness.take_output()
        for user in totals:
            assert [row for row in found if row.user == user] == [row for row in expected if row[0] == user]


@given(BATCHES, st.integers(1, 3))
def test_an_aggregation_emits_the_key_and_the_result_after_each_record(
    batches: list[list[Any]], parallelism: int
) -> None:
    harness = OperatorHarness(MEAN, input=INPUT, key=["user"], output=OUTPUT, parallelism=parallelism)
    amounts: dict[str | None, list[int]] = {}
    for records in batches:
        expected = []
        for user, amount in records:
            known = amounts.setdefault(user, [])
            known.append(amount)
            expected.append((user, len(known), sum(known) / len(known)))
        harness.process(*records)
        found = harness.take_output()
        for user in amounts:
            assert [row for row in found if row.user == user] == [row for row in expected if row[0] == user]
        harness = harness.restored(harness.snapshot(), parallelism=4 - parallelism)


@pytest.mark.parametrize(
    ("logic", "emitted"),
    [(Reduce(added, Ttl(100)), [1, 3, 6, 4]), (Aggregate(Mean(), MEAN.accumulator, Ttl(100)), [1, 2, 3, 1])],
    ids=["reduce", "aggregate"],
)
def test_a_keys_value_is_forgotten_a_ttl_after_its_last_record(logic: Any, emitted: list[int]) -> None:
    output = INPUT if isinstance(logic, Reduce) else OUTPUT
    harness = OperatorHarness(logic, input=INPUT, key=["user"], output=output)
    for amount, at_ms in ((1, 0), (2, 99), (3, 198), (4, 298)):
        harness.advance_processing_time(at_ms)
        harness.process(("a", amount))
    assert [row[1] for row in harness.take_output()] == emitted


def test_a_result_must_not_have_a_column_of_the_key() -> None:
    with pytest.raises(InvalidSchemaError, match="user"):
        keyed_schema(pa.schema([("user", pa.string())]), pa.schema([("user", pa.string()), ("n", pa.int64())]))


def test_a_reduction_that_does_not_return_a_record_is_refused() -> None:
    harness = OperatorHarness(Reduce(lambda left, _: left.amount, None), input=INPUT, key=["user"], output=INPUT)
    with pytest.raises(OutputTypeError):
        harness.process(("a", 1), ("a", 2))


class Counts(KeyedBatchFunction):
    """Counts the records of each key, batch by batch."""

    def open(self, context: RuntimeContext) -> None:
        self.counts = context.get_state(ValueStateDescriptor("counts", pa.int64()))

    def process_batch(self, batch: KeyedBatch) -> pa.Table:
        def more(current: pa.Array, groups: Any) -> pa.Array:
            return pc.add(current.fill_null(0), pa.array(np.bincount(groups, minlength=len(current))))

        self.counts.update_many(batch.key_groups, batch.keys, more)
        counts = self.counts.get_many(batch.key_groups, batch.keys)
        return pa.table({"mean": pa.array([0] * batch.num_rows), "count": counts, "user": batch.column("user")})


@given(BATCHES, st.integers(1, 3))
def test_a_batch_function_counts_as_a_fold_does(batches: list[list[Any]], parallelism: int) -> None:
    harness = OperatorHarness(Counts(), input=INPUT, key=["user"], output=OUTPUT, parallelism=parallelism)
    counts: dict[str | None, int] = {}
    for records in batches:
        for user, _ in records:
            counts[user] = counts.get(user, 0) + 1
        harness.process(*records)
        assert sorted(harness.take_output(), key=repr) == sorted(
            ((user, counts[user], 0.0) for user, _ in records), key=repr
        )


class Applied(KeyedBatchFunction):
    def __init__(self, function: Any) -> None:
        self.function = function

    def process_batch(self, batch: KeyedBatch) -> Any:
        return self.function(batch)


def applied(function: Any) -> list[Any]:
    harness = OperatorHarness(Applied(function), input=INPUT, key=["user"], output=INPUT)
    harness.process(("a", 1), ("b", 2))
    return harness.take_output()


def test_a_batch_function_returns_a_batch_a_table_several_or_none() -> None:
    rows = [("a", 1), ("b", 2)]
    assert applied(lambda batch: batch.records) == rows
    assert applied(lambda batch: pa.Table.from_batches([batch.records])) == rows
    assert applied(lambda batch: [batch.records.slice(at, 1) for at in (0, 1)]) == rows
    assert applied(lambda _: None) == []
    assert applied(lambda batch: batch.records.slice(0, 0)) == []


@pytest.mark.parametrize(
    ("function", "kind", "what"),
    [
        (lambda batch: batch.records.select(["user"]), OutputTypeError, "comes without the column 'amount'"),
        (lambda batch: [batch.column("user")], OutputTypeError, "StringArray"),
        (
            lambda batch: pa.table({"user": batch.column("user"), "amount": ["secret"] * batch.num_rows}),
            OutputTypeError,
            "'amount' is declared int64: a column of type string is not",
        ),
    ],
)
def test_errors_of_a_batch_function_are_reported_without_the_data(function: Any, kind: Any, what: str) -> None:
    with pytest.raises(kind, match=what) as failure:
        applied(function)
    assert "secret" not in str(failure.value)


def test_an_accumulator_of_another_type_is_refused_with_its_declaration() -> None:
    tested = OperatorHarness(Aggregate(Mean(), pa.string(), None), input=INPUT, key=["user"], output=OUTPUT)
    message = "the accumulator is declared string: .* is not a value of type string, key 'ada'"
    with pytest.raises(SerializationError, match=message):
        tested.process(("ada", 1))
