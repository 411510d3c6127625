"""Records are given to a processor, and taken from it, as in Spark; a frame's types follow from its own rows alone."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # publishes no types
import pyarrow as pa
import pytest
from pyspark.sql import Row

from keyscale.jobs.errors import OutputTypeError
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN
from keyscale.jobs.transform_with_state import record_form
from keyscale.jobs.transform_with_state.record_form import RecordForm, output_batch, records_by_key

BIG = 2**53 + 1
AT = dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC)
LOCAL = AT.replace(tzinfo=None)
FAR = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
PLACE = pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))])


def frames_of(key: list[Any], **columns: pa.Array) -> dict[Any, list[Any]]:
    """Returns the frames of each key."""
    batch = pa.record_batch({"id": pa.array(key), **columns, KEY_GROUP_COLUMN: pa.array([0] * len(key), pa.int32())})
    return {
        found.key[0]: [frame.drop(columns="id") for frame in found.records]
        for found in records_by_key([batch], ("id",), RecordForm.PANDAS)
    }


def test_the_null_of_one_key_does_not_change_the_types_of_another() -> None:
    found = frames_of(["a", "b", "a"], n=pa.array([BIG, None, 2]), flag=pa.array([True, None, False]))
    (a,), (b,) = found["a"], found["b"]
    assert a.dtypes.to_dict() == {"n": np.dtype("int64"), "flag": np.dtype("bool")}
    assert a["n"].tolist() == [BIG, 2]
    assert b.dtypes.to_dict() == {"n": np.dtype("float64"), "flag": np.dtype("object")}


@pytest.mark.parametrize(
    ("column", "wanted", "dtype"),
    [
        (pa.array([1, 2], pa.int8()), [1, 2], "int64"),
        (pa.array([1, 2], pa.int32()), [1, 2], "int64"),
        (pa.array([0.5, 2], pa.float32()), [0.5, 2.0], "float64"),
        (pa.array([1, None], pa.int16()), [1.0, None], "float64"),
        (pa.array([BIG, None]), [BIG, None], "object"),
        (pa.array([True, None]), [True, None], "object"),
        (pa.array([AT, None]), [pd.Timestamp(LOCAL), None], "datetime64[ns]"),
        (pa.array([LOCAL, None]), [pd.Timestamp(LOCAL), None], "datetime64[ns]"),
        (pa.array([AT, FAR]), [pd.Timestamp(LOCAL), pd.Timestamp(FAR.replace(tzinfo=None))], "datetime64[us]"),
        (pa.array([AT.date(), None]), [AT.date(), None], "object"),
        (pa.array([Decimal("1.20"), None]), [Decimal("1.20"), None], "object"),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())), [{"k": 1}, None], "object"),
        (pa.array([{"x": 1, "at": AT}, None], PLACE), [{"x": 1, "at": pd.Timestamp(LOCAL)}, None], "object"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_a_frame_has_sparks_types_at_any_place_in_a_chunk(column: pa.Array, wanted: list[Any], dtype: str) -> None:
    nulls = pa.nulls(1, column.type)
    others = pa.concat_arrays([nulls, column, nulls])
    (frame,) = frames_of(["x", "a", "a", "z"], it=others)["a"]
    assert frame["it"].dtype == np.dtype(dtype)
    found = [None if np.ndim(each) == 0 and pd.isna(each) else each for each in frame["it"].tolist()]
    assert found == wanted
    assert [type(each) for each in found] == [type(each) for each in wanted]


def test_a_null_within_a_list_does_not_change_the_lists_of_another_key() -> None:
    found = frames_of(["a", "b"], many=pa.array([[1, 2], [3, None]], pa.list_(pa.int32())))
    (a,), (b,) = found["a"], found["b"]
    assert a["many"][0].dtype == np.dtype("int32")
    assert b["many"][0].tolist() == [3, None]


def test_a_key_has_as_few_frames_as_its_rows_need_wherever_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_form, "FRAME_ROWS", 3)
    keys = ["a"] * 2 + ["b"] * 7 + ["c"] + ["d"] + ["e"] + ["f"] * 3
    found = frames_of(keys, n=pa.array(range(len(keys))))
    assert {key: [len(frame) for frame in frames] for key, frames in found.items()} == {
        "a": [2], "b": [3, 3, 1], "c": [1], "d": [1], "e": [1], "f": [3],
    }  # fmt: skip
    assert [n for frames in found.values() for frame in frames for n in frame["n"]] == list(range(len(keys)))
    assert all(frame.index.equals(pd.RangeIndex(len(frame))) for frames in found.values() for frame in frames)


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (RecordForm.ROWS, (AT, AT.date(), BIG, {"x": 1, "at": AT})),
        (
            RecordForm.PANDAS,
            (pd.Timestamp(LOCAL), AT.date(), BIG, {"x": 1, "at": pd.Timestamp(LOCAL)}),
        ),
    ],
)
def test_a_key_is_shown_in_the_form_of_its_records(form: RecordForm, shown: tuple[Any, ...]) -> None:
    columns = {
        "at": pa.array([AT, None]),
        "day": pa.array([AT.date(), None]),
        "n": pa.array([BIG, None]),
        "place": pa.array([{"x": 1, "at": AT}, None], PLACE),
    }
    batch = pa.record_batch({**columns, KEY_GROUP_COLUMN: pa.array([0, 0], pa.int32())})
    found = [each.shown_key for each in records_by_key([batch], tuple(columns), form) if list(each.records)]
    assert found == [shown, (None,) * 4]
    assert [type(each) for each in found[0]] == [type(each) for each in shown]


def test_batches_without_rows_have_no_keys() -> None:
    batch = pa.record_batch({"id": pa.array([], pa.string()), KEY_GROUP_COLUMN: pa.array([], pa.int32())})
    for form in RecordForm:
        assert list(records_by_key([batch], ("id",), form)) == []


@pytest.mark.parametrize(
    ("series", "kind", "wanted"),
    [
        (pd.Series(["a", "b"], dtype="category"), pa.string(), ["a", "b"]),
        (pd.Series([{"k": 1}, {}]), pa.map_(pa.string(), pa.int32()), [[("k", 1)], []]),
        (pd.Series([{"x": 1, "at": pd.Timestamp(LOCAL)}, Row(x=1, at=LOCAL)]), PLACE, [{"x": 1, "at": AT}] * 2),
        (pd.Series([pd.Timestamp(LOCAL) + pd.Timedelta(7, "ns"), None]), pa.timestamp("us", "UTC"), [AT, None]),
        (pd.Series([pd.Timestamp(AT).tz_convert("Asia/Tokyo"), None]), pa.timestamp("us", "UTC"), [AT, None]),
        (pd.Series([1.0, np.nan]), pa.int64(), [1, None]),
        (pd.Series([np.array([1, 2]), None]), pa.list_(pa.int64()), [[1, 2], None]),
        (pd.Series(["7", "8"]), pa.int64(), [7, 8]),
    ],
)  # fmt: skip
def test_output_is_converted_as_in_spark(series: pd.Series, kind: pa.DataType, wanted: list[Any]) -> None:
    schema = pa.schema([("it", kind)])
    assert output_batch(pd.DataFrame({"it": series}), schema, RecordForm.PANDAS).column(0).to_pylist() == wanted
    assert output_batch(pd.DataFrame({0: series}), schema, RecordForm.PANDAS).column(0).to_pylist() == wanted


def test_a_frame_without_columns_has_no_rows_of_output() -> None:
    schema = pa.schema([("it", pa.int64())])
    assert output_batch(pd.DataFrame(), schema, RecordForm.PANDAS).num_rows == 0


@pytest.mark.parametrize(
    ("series", "kind"),
    [
        (pd.Series([1.5]), pa.int64()),
        (pd.Series([300]), pa.int8()),
        (pd.Series([BIG]), pa.float64()),
        (pd.Series(["x"]), pa.int64()),
        (pd.Series([7]), pa.map_(pa.string(), pa.int32())),
    ],
)
def test_output_that_would_be_rounded_or_does_not_fit_is_refused(series: pd.Series, kind: pa.DataType) -> None:
    with pytest.raises(OutputTypeError, match="'it' is declared"):
        output_batch(pd.DataFrame({"it": series}), pa.schema([("it", kind)]), RecordForm.PANDAS)
