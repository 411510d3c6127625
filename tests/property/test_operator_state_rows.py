"""Random operator state is read as rows and written again: equal, at any parallelism."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.state.inspection.state_table import OperatorTable
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from keyscale.state.operator_state.backend import OperatorStateBackend, OperatorStateSnapshot
from keyscale.state_io import NewOperator, NewOperatorState, StateReader, write
from keyscale.state_io.verified_state import verify_state
from tests.property.histories import EXAMPLES, SCRATCH
from tests.property.state_columns import SCALARS, VALUES, typed
from tests.property.state_examples import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KEY = {"user": pa.string()}

Declared = tuple[ListStateDescriptor | MapStateDescriptor, bool]


@st.composite
def operator_states(draw: Callable[..., Any]) -> tuple[Declared, list[OperatorStateSnapshot]]:
    """Draws the declaration of an operator state, and the state of each subtask as a job stores it."""
    of_type, values = draw(typed(VALUES))
    subtasks = draw(st.integers(1, 3))
    if draw(st.booleans()):
        key_type, keys = draw(typed(SCALARS))
        entries = draw(st.lists(st.tuples(keys, st.none() | values), max_size=4))
        content = {plain(key, key_type): (key, value) for key, value in entries}
        of_map = OperatorStateBackend()
        mapped = MapStateDescriptor("s", key_type, of_type)
        of_map.broadcast_state(mapped).put_all(dict(content.values()))
        return (mapped, False), [of_map.snapshot()] * subtasks
    listed, is_union = ListStateDescriptor("s", of_type), draw(st.booleans())
    taken = []
    for _ in range(subtasks):
        backend = OperatorStateBackend()
        (backend.union_list_state if is_union else backend.list_state)(listed).add_all(
            draw(st.lists(values, max_size=3))
        )
        taken.append(backend.snapshot())
    return (listed, is_union), taken


def rows_of(taken: Sequence[OperatorStateSnapshot]) -> pa.Table:
    """Returns the rows that a reader gives."""
    table = OperatorTable("s", taken[0].states["s"])
    return pa.Table.from_batches(table.batches([each.states["s"] for each in taken]), table.schema)


def items_of(snapshots: Sequence[OperatorStateSnapshot]) -> list[Any]:
    """Returns the list elements of all subtasks, or the map of the first."""
    states = [each.states["s"] for each in snapshots]
    return [item for each in (states if states[0].key_type is None else states[:1]) for item in each.items]


@settings(max_examples=EXAMPLES * 3)
@given(operator_states(), st.integers(1, 4))
def test_rows_become_exactly_the_state_that_they_were_read_from(
    example: tuple[Declared, list[OperatorStateSnapshot]], parallelism: int
) -> None:
    (descriptor, is_union), taken = example
    rows = rows_of(taken)
    assert NewOperatorState(descriptor, rows, is_union).snapshots(len(taken)) == taken
    unplaced = rows.drop_columns([name for name in ("subtask", "list_index") if name in rows.schema.names])
    for some in (rows, unplaced):
        new = NewOperatorState(descriptor, some, is_union).snapshots(parallelism)
        assert items_of(new) == items_of(taken)
        if isinstance(descriptor, MapStateDescriptor):
            assert new == [taken[0]] * parallelism
        elif some is unplaced:
            sizes = [len(each.states["s"].items) for each in new]
            assert max(sizes) - min(sizes) <= 1


@settings(max_examples=EXAMPLES)
@given(operator_states(), st.integers(1, 4), st.integers(1, 4))
def test_a_written_savepoint_has_the_operator_state_that_was_given(
    example: tuple[Declared, list[OperatorStateSnapshot]], first: int, second: int
) -> None:
    (descriptor, is_union), taken = example
    given_rows: Any = rows_of(taken)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as directory:
        for name, parallelism in (("first", first), ("second", second)):
            operator = NewOperator("o", KEY, operator_states=[NewOperatorState(descriptor, given_rows, is_union)])
            location = write(f"file://{directory}/store/history/savepoints/{name}", [operator], parallelism=parallelism)
            assert verify_state(location).problems == []
            with StateReader.open(location) as reader:
                table = reader.table("o", "s")
                assert table.kind == taken[0].states["s"].distribution
                rows = table.reader().read_all()
            assert text(rows["value"]) == text(given_rows["value"])
            if "subtask" not in rows.schema.names or max(given_rows["subtask"].to_pylist(), default=0) < parallelism:
                assert text(rows) == text(given_rows)
            given_rows = rows


def text(rows: Any) -> str:
    """Returns rows, or a column, as text, in which NaN is equal to itself."""
    return repr(rows.to_pylist())
