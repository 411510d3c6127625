"""Several outputs share one schema, each record in the column of its output; a single output keeps its schema."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.jobs.functions.subtask_info import SubtaskInfo
from keyscale.jobs.operators.operator_contract import SideBatch
from keyscale.jobs.runtime.executor.side_outputs import to_wire, wire_schema

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
