"""Operator state from rows: what a job restores from it, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.functions.process_function import KeyedProcessFunction, ProcessContext, RuntimeContext
from keyscale.state.errors import DescriptorError, KeyGroupError, StateSchemaMismatchError
from keyscale.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.operator_state.operator_files import OperatorStatePlan, open_operator_state
from keyscale.state.serializers.pickled import Pickled
from keyscale.state.writing.new_savepoint import NewSavepoint
from keyscale.state.writing.row_encoder import KeyHashing, RowsInvalidError
from keyscale.state_io import NewOperator, NewOperatorState, NewState, StateReader, spark_writer, write
from tests.support.rehearsal.keyed_rehearsal import OPERATOR, keyed_rehearsal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.state.operator_state.backend import OperatorStateBackend

KEY = {"user": pa.string()}
NUMBERS = ListStateDescriptor("numbers", pa.int64())
NAMES = ListStateDescriptor("names", pa.string())
RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
TIMES = ListStateDescriptor("times", pa.timestamp("ms", "UTC"))
BY_TIME = MapStateDescriptor("by_time", pa.timestamp("ms", "UTC"), pa.int64())
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
OPERATOR_STATES = [
    NewOperatorState(NUMBERS, pa.table({"subtask": [1, 1, 0], "list_index": [7, 3, 0], "value": [1, 2, 3]})),
    NewOperatorState(NAMES, pa.table({"value": ["a", "b", "c"]}), is_union=True),
    NewOperatorState(RULES, pa.table({"map_key": ["b", "a"], "value": [1, None]})),
]
CLICKS = NewState(ValueStateDescriptor("clicks", pa.int64()), pa.table({"user": ["ada"], "value": [3]}))


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/history/savepoints/first"


def restored(location: str, parallelism: int) -> list[OperatorStateBackend]:
    """Returns the operator state of each subtask of a job that starts from a savepoint."""
    with StateReader.open(location) as reader:
        plan = OperatorStatePlan(tuple(reader.point.operator("o").operator_state), inherited=True)
        store = reader.point.store
        return [open_operator_state(store, plan, SubtaskIndex(index), parallelism) for index in range(parallelism)]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_restores_operator_state_beside_keyed_state(place: str, parallelism: int) -> None:
    write(place, [NewOperator("o", KEY, [CLICKS], OPERATOR_STATES)], parallelism=2)
    subtasks = restored(place, parallelism)
    numbers = [each.list_state(NUMBERS).get() for each in subtasks]
    assert numbers == {1: [[3, 2, 1]], 2: [[3], [2, 1]], 3: [[3], [2], [1]]}[parallelism]
    assert [each.union_list_state(NAMES).get() for each in subtasks] == [["a", "b", "c"]] * parallelism
    assert [list(each.broadcast_state(RULES).items()) for each in subtasks] == [[("b", 1), ("a", None)]] * parallelism
    with StateReader.open(place) as reader:
        assert reader.table("o", "clicks").reader().read_all()["value"].to_pylist() == [3]


def test_an_operator_may_have_only_operator_state(place: str) -> None:
    write(place, [NewOperator("o", KEY, operator_states=OPERATOR_STATES)])
    with StateReader.open(place) as reader:
        assert [(table.name, table.kind) for table in reader.tables("o")] == [
            ("names", "union"),
            ("numbers", "split"),
            ("rules", "broadcast"),
        ]


class Remembering(KeyedProcessFunction):
    """Adds the key of each record to a list, and emits nothing."""

    def open(self, context: RuntimeContext) -> None:
        self.names = context.get_operator_list_state(ListStateDescriptor("names", pa.string()))

    def process_element(self, row: Any, _: ProcessContext) -> Iterator[dict[str, Any]]:
        self.names.add(row.key)
        return iter(())


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_job_goes_on_from_written_operator_state(tmp_path: Path, parallelism: int) -> None:
    rows = pa.table({"value": ["first", "second", "third"]})
    states = [NewOperatorState(ListStateDescriptor("names", pa.string()), rows)]
    location = write(
        f"file://{tmp_path}/store/history/savepoints/names",
        [NewOperator(OPERATOR, {"key": pa.string()}, operator_states=states)],
        max_parallelism=16,
        parallelism=2,
    )
    job = keyed_rehearsal(tmp_path, Remembering(), pa.schema([("n", pa.int64())]), [[("ada", 1)], [("bob", 2)]])
    job.start(parallelism, location)
    job.drain()
    with StateReader.open(job.checkpoint("end")) as reader:
        names = reader.table(OPERATOR, "names").reader().read_all()["value"].to_pylist()
    assert sorted(names) == ["ada", "bob", "first", "second", "third"]


def test_spark_writes_operator_state_in_the_driver(place: str, tmp_path: Path) -> None:
    savepoint = NewSavepoint.at(place, KeyHashing(8))
    operator = NewOperator("o", KEY, operator_states=OPERATOR_STATES)
    written = spark_writer.write_operator(savepoint, operator, 2, str(tmp_path))
    savepoint.publish([written.snapshot])
    assert [each.list_state(NUMBERS).get() for each in restored(place, 2)] == [[3], [2, 1]]


def test_pickled_elements_are_given_as_bytes(place: str) -> None:
    rows = pa.table({"value": [b"bytes of a pickle"]})
    write(place, [NewOperator("o", KEY, operator_states=[NewOperatorState(ListStateDescriptor("l", Pickled()), rows)])])
    with StateReader.open(place) as reader:
        assert reader.table("o", "l").reader().read_all()["value"].to_pylist() == [b"bytes of a pickle"]


def test_no_rows_declare_an_empty_state(place: str) -> None:
    states = [NewOperatorState(NUMBERS, []), NewOperatorState(RULES, [])]
    write(place, [NewOperator("o", KEY, operator_states=states)])
    with StateReader.open(place) as reader:
        assert [table.reader().read_all().num_rows for table in reader.tables("o")] == [0, 0]


@pytest.mark.parametrize(
    ("descriptor", "rows", "complaint"),
    [
        (NUMBERS, {"user": ["ada"], "value": [1]}, "unknown columns user"),
        (NUMBERS, {"subtask": [0]}, "lack the column 'value'"),
        (NUMBERS, {"value": pa.array([None], pa.int64())}, "has no value"),
        (NUMBERS, {"value": ["text"]}, "'value' does not fit"),
        (NUMBERS, {"subtask": [-1], "value": [1]}, "subtask is a number from 0"),
        (NUMBERS, {"list_index": pa.array([None], pa.int64()), "value": [1]}, "list_index is a number from 0"),
        (NUMBERS, {"subtask": [0, 0], "list_index": [1, 1], "value": [1, 2]}, "1 rows have the place"),
        (RULES, {"subtask": [0], "map_key": ["a"], "value": [1]}, "unknown columns subtask"),
        (TIMES, {"value": pa.array([2**62], pa.timestamp("ms", "UTC"))}, "'value' does not fit"),
        (BY_TIME, {"map_key": pa.array([2**62], pa.timestamp("ms", "UTC")), "value": [1]}, "'map_key' does not fit"),
        (NAMES, {"value": NOT_UTF8}, "'value' does not fit"),
        (RULES, {"value": [1]}, "lack the column 'map_key'"),
        (RULES, {"map_key": ["a", "a"], "value": [1, 2]}, "1 rows have the place or map key"),
    ],
)
def test_rows_that_do_not_fit_are_refused(place: str, descriptor: Any, rows: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RowsInvalidError, match=complaint):
        write(place, [NewOperator("o", KEY, operator_states=[NewOperatorState(descriptor, pa.table(rows))])])


@pytest.mark.parametrize("state", [CLICKS.descriptor, NUMBERS])
def test_rows_with_two_columns_of_one_name_are_refused(place: str, state: Any) -> None:
    rows = pa.record_batch([pa.array(["ada"]), pa.array([1]), pa.array([2])], ["user", "value", "value"])
    is_keyed = state is not NUMBERS
    operator = (
        NewOperator("o", KEY, [NewState(state, rows)])
        if is_keyed
        else NewOperator("o", KEY, operator_states=[NewOperatorState(state, rows.drop_columns(["user"]))])
    )
    with pytest.raises(RowsInvalidError, match="'value' twice"):
        write(place, [operator])


def test_batches_with_different_columns_are_refused(place: str) -> None:
    batches = [pa.record_batch({"value": [1]}), pa.record_batch({"value": [1], "subtask": [0]})]
    with pytest.raises(RowsInvalidError, match="different columns"):
        write(place, [NewOperator("o", KEY, operator_states=[NewOperatorState(NUMBERS, batches)])])


@pytest.mark.parametrize(
    "state",
    [
        NewOperatorState(ListStateDescriptor("l", pa.int64(), Ttl(1000)), []),
        NewOperatorState(MapStateDescriptor("m", pa.string(), pa.int64(), None, pa.int64()), []),
        NewOperatorState(RULES, [], is_union=True),
        NewOperatorState(ValueStateDescriptor("v", pa.int64()), []),
    ],
)
def test_a_declaration_that_operator_state_cannot_have_is_refused(place: str, state: NewOperatorState) -> None:
    with pytest.raises(DescriptorError):
        write(place, [NewOperator("o", KEY, operator_states=[state])])


def test_a_keyed_state_and_an_operator_state_cannot_share_a_name(place: str) -> None:
    states = [NewOperatorState(ListStateDescriptor("clicks", pa.int64()), [])]
    with pytest.raises(StateSchemaMismatchError, match="'clicks' is written twice"):
        write(place, [NewOperator("o", KEY, [CLICKS], states)])


def test_a_parallelism_of_zero_is_refused(place: str) -> None:
    with pytest.raises(KeyGroupError):
        write(place, [NewOperator("o", KEY, operator_states=OPERATOR_STATES)], parallelism=0)
