"""A value of any class is kept exactly by a column or a state of any type, or refused: in all forms alike."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.jobs.errors import OutputTypeError
from keyscale.jobs.operators.batch_operator import conformed
from keyscale.jobs.operators.column_values import batch_of
from keyscale.jobs.transform_with_state.record_form import RecordForm, output_batch
from keyscale.state.errors import SerializationError
from keyscale.state.serializers.value_serializer import serializer_for

UTC = pa.timestamp("us", "UTC")
TYPES = [
    pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(10, 1),
    pa.decimal128(38, 18), pa.string(), pa.binary(), pa.date32(), UTC, pa.timestamp("us"), pa.timestamp("ms"),
]  # fmt: skip
MIDNIGHT = dt.datetime.combine(dt.date(2020, 1, 2), dt.time())
AT = MIDNIGHT + dt.timedelta(hours=3, microseconds=6)
SAMPLES = [
    True, 7, -1, 300, 2**31, 2**53 + 1, 2**63, 7.0, 7.9, -0.5, 0.1, 1e300, math.inf, math.nan,
    np.bool_(True), np.int64(300), np.float64(7.9), np.float32(7.5), Decimal(7), Decimal("7.9"), Decimal("1.23"),
    Decimal("NaN"), Decimal(10**10), "7", "x", b"7", b"\xff", AT.date(), AT, MIDNIGHT, AT.replace(tzinfo=dt.UTC),
    AT.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))), uuid.UUID(int=1), dt.timedelta(1), object(),
]  # fmt: skip


def in_a_row(value: Any, kind: pa.DataType) -> Any:
    return batch_of([(value,)], pa.schema([("it", kind)])).column(0).to_pylist()[0]


def in_a_list(value: Any, kind: pa.DataType) -> Any:
    return batch_of([([value],)], pa.schema([("it", pa.list_(kind))])).column(0).to_pylist()[0][0]


def in_a_struct(value: Any, kind: pa.DataType) -> Any:
    return batch_of([({"x": value},)], pa.schema([("it", pa.struct({"x": kind}))])).column(0).to_pylist()[0]["x"]


def in_state(value: Any, kind: pa.DataType) -> Any:
    serializer = serializer_for(kind)
    return serializer.decode(serializer.encode(value), 0)


def in_a_list_in_state(value: Any, kind: pa.DataType) -> Any:
    serializer = serializer_for(pa.list_(kind))
    return serializer.decode(serializer.encode([value]), 0)[0]


def in_a_struct_in_state(value: Any, kind: pa.DataType) -> Any:
    serializer = serializer_for(pa.struct({"x": kind}))
    return serializer.decode(serializer.encode({"x": value}), 0)["x"]


def in_a_frame_of_objects(value: Any, kind: pa.DataType) -> Any:
    frame = pd.DataFrame({"it": pd.Series([value], dtype=object)})
    return output_batch(frame, pa.schema([("it", kind)]), RecordForm.PANDAS).column(0).to_pylist()[0]


FORMS = [in_a_row, in_a_list, in_a_struct, in_state, in_a_list_in_state, in_a_struct_in_state]


def outcome(form: Any, value: Any, kind: pa.DataType) -> Any:
    """What is read back; the class of the refusal if the value is refused."""
    try:
        return form(value, kind)
    except (OutputTypeError, SerializationError):
        return OutputTypeError


def is_the_same(read: Any, value: Any, kind: pa.DataType) -> bool:
    """Whether what is read back is what was given, by a rule that shares no code with the conversions."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return isinstance(read, float) and math.isnan(read)
    if kind == pa.float32() and isinstance(value, float):
        return bool(read == np.float32(value)) and math.isinf(read) == math.isinf(value)
    if isinstance(value, str) and kind == pa.binary():
        return bool(read.decode() == value)
    if isinstance(value, dt.datetime) and pa.types.is_date(kind):
        return bool(dt.datetime.combine(read, dt.time()) == value)
    if isinstance(value, dt.datetime) and kind == UTC and value.tzinfo is None:
        return bool(read == value.replace(tzinfo=dt.UTC))
    return bool(read == value)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_value_is_kept_exactly_or_refused_in_every_form_alike(kind: pa.DataType) -> None:
    for value in SAMPLES:
        found = [outcome(form, value, kind) for form in FORMS]
        refused = [each is OutputTypeError for each in found]
        assert len(set(refused)) == 1, (kind, value, dict(zip([form.__name__ for form in FORMS], found, strict=True)))
        assert refused[0] or all(is_the_same(read, value, kind) for read in found), (kind, value, found)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7.9, pa.int64()),
        (-0.5, pa.int64()),
        (Decimal("7.9"), pa.int64()),
        (np.float64(7.9), pa.int32()),
        (2**53 + 1, pa.float64()),
        (Decimal("1.23"), pa.decimal128(10, 1)),
        (Decimal("0.5"), pa.float64()),
        (AT, pa.date32()),
        (AT, pa.timestamp("ms")),
        (AT.replace(tzinfo=dt.UTC), pa.timestamp("us")),
        (1e300, pa.float32()),
        (5, UTC),
        ("\ud800", pa.binary()),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("form", [*FORMS, in_a_frame_of_objects])
def test_what_would_lose_something_is_refused_without_its_content(form: Any, value: Any, kind: pa.DataType) -> None:
    with pytest.raises((OutputTypeError, SerializationError)) as refusal:
        form(value, kind)
    assert str(value) not in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "kind", "kept"),
    [
        (7.0, pa.int64(), 7),
        (Decimal(7), pa.int32(), 7),
        (True, pa.int64(), 1),
        (7, pa.float64(), 7.0),
        (7, pa.decimal128(10, 1), Decimal(7)),
        ("x", pa.binary(), b"x"),
        (MIDNIGHT, pa.date32(), MIDNIGHT.date()),
        (AT, UTC, AT.replace(tzinfo=dt.UTC)),
        (0.1, pa.float32(), float(np.float32(0.1))),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", FORMS)
def test_what_loses_nothing_is_converted(form: Any, value: Any, kind: pa.DataType, kept: Any) -> None:
    assert form(value, kind) == kept


def natural_columns() -> list[pa.Array]:
    values = [True, 7, 300, 2**53 + 1, 7.0, 7.9, math.inf, 1e300, Decimal("1.23"), Decimal(7), "7", "x", b"7",
              AT.date(), AT, MIDNIGHT]  # fmt: skip
    return [pa.array([value, None]) for value in values] + [pa.array([AT, None], UTC)]


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("column", natural_columns(), ids=lambda column: f"{column.type}:{column[0]}")
def test_a_column_of_a_batch_is_kept_or_refused_as_its_values_are_in_rows(column: pa.Array, kind: pa.DataType) -> None:
    def cast(of_column: pa.Array, of_kind: pa.DataType) -> Any:
        (batch,) = conformed(pa.table({"it": of_column}), pa.schema([("it", of_kind)]))
        return batch.column(0).to_pylist()

    (value, _), in_batch, in_row = (
        column.to_pylist(),
        outcome(cast, column, kind),
        outcome(in_a_row, column[0].as_py(), kind),
    )
    if in_batch is OutputTypeError:
        assert in_row is OutputTypeError, (value, kind)
    else:
        assert is_the_same(in_batch[0], value, kind), (value, kind)
        assert in_batch == [in_row, None]


def in_a_batch(column: pa.Array, kind: pa.DataType) -> Any:
    (batch,) = conformed(pa.table({"it": column}), pa.schema([("it", kind)]))
    return batch.column(0).to_pylist()[0]


AB, AC, BA = (pa.struct({first: pa.int32(), second: pa.int32()}) for first, second in ("ab", "ac", "ba"))


@pytest.mark.parametrize(
    ("value", "given_type", "kind"),
    [
        ({"a": 1, "b": 2}, AB, AC),
        ([{"a": 1, "b": 2}], pa.list_(AB), pa.list_(AC)),
        ({"x": {"a": 1, "b": 2}}, pa.struct({"x": AB}), pa.struct({"x": AC})),
    ],
    ids=str,
)
def test_a_struct_of_a_batch_with_another_field_is_refused_as_in_a_row(
    value: Any, given_type: pa.DataType, kind: pa.DataType
) -> None:
    assert in_a_batch(pa.array([value], given_type), given_type) == value
    with pytest.raises(OutputTypeError, match="without the field 'c'"):
        in_a_row(value, kind)
    with pytest.raises(OutputTypeError, match="without the field 'c'"):
        in_a_batch(pa.array([value], given_type), kind)


def test_a_struct_of_a_batch_with_its_fields_in_another_order_keeps_them() -> None:
    assert in_a_batch(pa.array([{"a": 1, "b": 2}], AB), BA) == {"b": 2, "a": 1}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.duration("us")),
        (7, pa.duration("us")),
        (dt.timedelta(microseconds=1500), pa.duration("ms")),
        (AT.time(), pa.time32("s")),
        (AT, pa.date64()),
    ],
    ids=str,
)
def test_a_duration_or_a_time_of_day_is_kept_or_refused_in_rows_and_batches_alike(
    value: Any, kind: pa.DataType
) -> None:
    for form in (in_a_row, in_a_list, in_a_struct, lambda each, of_kind: in_a_batch(pa.array([each]), of_kind)):
        with pytest.raises(OutputTypeError) as refusal:
            form(value, kind)
        assert str(value) not in str(refusal.value)
    kept = dt.timedelta(microseconds=1500)
    assert in_a_row(kept, pa.duration("us")) == in_a_batch(pa.array([kept]), pa.duration("ns")).to_pytimedelta() == kept


@given(st.integers() | st.floats() | st.decimals(places=3), st.sampled_from(TYPES))
def test_any_number_is_kept_exactly_or_refused(value: Any, kind: pa.DataType) -> None:
    found = outcome(in_a_row, value, kind)
    assert outcome(in_state, value, kind) is OutputTypeError if found is OutputTypeError else True
    assert found is OutputTypeError or is_the_same(found, value, kind)
