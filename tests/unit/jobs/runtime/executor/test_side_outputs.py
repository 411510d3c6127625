"""Several outputs share one schema, each record in the column of its output; a single output keeps its schema."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.jobs.functions.subtask_info import SubtaskInfo
from keyscale.jobs.operators.operator_contract import SideBatch
from keyscale.jobs.runtime.executor import side_outputs
from keyscale.jobs.runtime.executor.side_outputs import main_output, side_output, to_wire, wire_schema
from tests.support.spark import played_columns
from tests.support.spark.played_frame import frame_of

if TYPE_CHECKING:
    import pytest

MAIN = pa.schema([("user", pa.string())])
SIDE = {"late": pa.schema([("user", pa.string()), ("at", pa.int64())]), "odd": pa.schema([("n", pa.int32())])}
INFO = SubtaskInfo(
    operator_uid=OperatorUid("tested"),
    subtask=SubtaskIndex(0),
    parallelism=1,
    max_parallelism=128,
    attempt=Attempt(1),
    input_columns=("user",),
    key_columns=("user",),
    timestamp_column=None,
    output_schema=MAIN,
    side_outputs=SIDE,
)


def main_batch(*users: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(users)], schema=MAIN)


def test_a_record_is_in_the_column_of_its_output_and_in_no_other() -> None:
    late = pa.record_batch([pa.array(["bob"]), pa.array([7])], schema=SIDE["late"])
    wire = pa.Table.from_batches(to_wire(iter([main_batch("ada", "bob"), SideBatch("late", late)]), INFO))
    assert wire.schema == wire_schema(MAIN, SIDE)
    assert wire.column("__output").to_pylist() == [0, 0, 1]
    assert wire.column("__output_0").to_pylist() == [{"user": "ada"}, {"user": "bob"}, None]
    assert wire.column("__output_1").to_pylist() == [None, None, {"user": "bob", "at": 7}]
    assert pc.count(wire.column("__output_2")).as_py() == 0


def test_without_side_outputs_records_are_passed_on_unchanged() -> None:
    info = replace(INFO, side_outputs={})
    assert list(to_wire(iter([main_batch("ada")]), info)) == [main_batch("ada")]
    assert wire_schema(MAIN, {}) == MAIN


def test_each_reader_of_an_operator_gets_the_records_of_its_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_outputs, "F", played_columns)
    late, odd = {"user": "bob", "at": 7}, {"n": 3}
    wire = frame_of(
        {"__output": 0, "__output_0": {"user": "ada"}, "__output_1": None, "__output_2": None},
        {"__output": 2, "__output_0": None, "__output_1": None, "__output_2": odd},
        {"__output": 1, "__output_0": None, "__output_1": late, "__output_2": None},
        {"__output": 0, "__output_0": {"user": "eve"}, "__output_1": None, "__output_2": None},
    )
    found = [main_output(wire), *(side_output(wire, tag, SIDE) for tag in SIDE)]
    assert [frame.rows for frame in cast("Any", found)] == [[{"user": "ada"}, {"user": "eve"}], [late], [odd]]
