"""Columns take the types that a program declares, and keep their values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keyscale.state_import.column_conversion import columns_of_key, converted
from keyscale.state_import.errors import ImportUnmappedError

PAIR = pa.struct([("f0", pa.int32()), ("f1", pa.string())])
NAMED = pa.struct([("number", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize(
    ("values", "found", "wanted"),
    [
        ([1, None], pa.int32(), pa.int64()),
        ([0.5], pa.float32(), pa.float64()),
        ([[1, 2], None, []], pa.list_(pa.int32()), pa.list_(pa.int64())),
        ([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
        ([{"a": 1, "b": None}, None], pa.struct({"a": pa.int32(), "b": pa.string()}), None),
    ],
)
def test_values_stay_equal(values: list[Any], found: pa.DataType, wanted: pa.DataType | None) -> None:
    of_type = wanted or pa.struct({"b": pa.string(), "a": pa.int64()})
    column = converted(pa.array(values, found), of_type)
    column.validate(full=True)
    assert column.type == of_type
    assert column.to_pylist() == values


def test_the_fields_of_a_tuple_are_found_by_their_places() -> None:
    column = converted(pa.array([{"f0": 1, "f1": "a"}], PAIR), NAMED)
    assert column.to_pylist() == [{"number": 1, "text": "a"}]
    number, text = columns_of_key(pa.array([{"f0": 1, "f1": "a"}], PAIR), pa.schema(list(NAMED)))
    assert (number.to_pylist(), text.to_pylist()) == ([1], ["a"])


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.string()),
        (pa.float64(), pa.int64()),
        (pa.struct({"a": pa.int64()}), pa.struct({"b": pa.int64()})),
        (pa.string(), PAIR),
    ],
)
def test_a_type_that_cannot_hold_all_values_is_refused(found: pa.DataType, wanted: pa.DataType) -> None:
    with pytest.raises(ImportUnmappedError):
        converted(pa.array([], found), wanted)
    with pytest.raises(ImportUnmappedError):
        columns_of_key(pa.array([], found), pa.schema([("key", wanted)]))
