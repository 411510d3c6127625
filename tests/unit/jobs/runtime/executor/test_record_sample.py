"""A sample has the first records of a subtask, within limits, and never fails a task."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from keyscale.jobs.operators.operator_contract import SideBatch
from keyscale.jobs.runtime.executor import record_sample
from keyscale.jobs.runtime.executor.record_sample import RecordSample, SampleOrder, hidden

ALL = SampleOrder("d1", 3, None)


def batch(*ids: int, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), **columns})


def test_the_first_records_are_taken_of_each_side_and_all_are_passed_on() -> None:
    sample, batches = RecordSample(ALL), [batch(1, 2), batch(3, 4)]
    assert list(sample.of_input(iter(batches))) == batches
    outputs = [batch(5), SideBatch("late", batch(6))]
    assert list(sample.of_output(iter(outputs))) == outputs
    assert sample.lines == {
        "input": ['{"id": 1}', '{"id": 2}', '{"id": 3}'],
        "output": ['{"id": 5}'],
        "output late": ['{"id": 6}'],
    }


def test_without_an_order_nothing_is_taken() -> None:
    sample = RecordSample(None)
    assert len(list(sample.of_input(iter([batch(1)])))) == 1
    assert sample.lines == {}


def test_a_long_record_is_cut_and_any_value_has_a_form(monkeypatch: Any) -> None:
    monkeypatch.setattr(record_sample, "_ROW_CHARACTERS_MAX", 12)
    sample = RecordSample(ALL)
    rows = batch(1, at=pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")))
    list(sample.of_input(iter([rows])))
    assert sample.lines["input"] == ['{"id": 1, "a…']


def test_a_record_that_cannot_be_shown_is_left_out_and_the_batch_goes_on() -> None:
    beyond = pa.array([1 << 62], pa.timestamp("us"))  # no datetime holds it
    rows = pa.RecordBatch.from_arrays([beyond], ["at"])
    sample = RecordSample(ALL)
    assert list(sample.of_input(iter([rows, batch(7)]))) == [rows, batch(7)]
    assert sample.lines["input"] == ['{"id": 7}']


def test_hidden_values_keep_their_form_and_say_which_are_equal_under_one_key_only() -> None:
    row = {"user": "ada", "friend": "ada", "age": 36, "tags": ["ada", None], "at": datetime(2026, 1, 1, tzinfo=UTC)}
    found = hidden(row, b"key")
    assert "ada" not in json.dumps(found)
    assert found["user"].startswith("str ")
    assert found["age"].startswith("int ")
    assert found["at"].startswith("datetime ")
    assert found["user"] == found["friend"] == found["tags"][0]
    assert found["tags"][1] is None
    assert hidden(row, b"another")["user"] != found["user"]
