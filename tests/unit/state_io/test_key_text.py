"""Keys as users write them."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from keyscale.state_io.key_text import KeyTextError, key_of_text

ID = uuid.UUID("9f0c2a3e-7b1d-4c57-8a55-0d9e6f1b2c3d")


@pytest.mark.parametrize(
    ("text", "of_type", "value"),
    [
        ("ada", pa.string(), "ada"),
        ("17", pa.string(), "17"),
        ('["x"]', pa.string(), '["x"]'),
        ("17", pa.int64(), 17),
        ("-1", pa.int8(), -1),
        ("1.5", pa.float64(), 1.5),
        ("true", pa.bool_(), True),
        ("2013-01-01", pa.date32(), dt.date(2013, 1, 1)),
        ("1.50", pa.decimal128(5, 2), Decimal("1.50")),
        (str(ID), pa.uuid(), ID),
        ("null", pa.string(), None),
        ("[1, 2]", pa.list_(pa.int64()), [1, 2]),
    ],
)
def test_a_key_of_one_column_is_its_text(text: str, of_type: pa.DataType, value: Any) -> None:
    assert key_of_text(text, pa.schema([("key", of_type)])) == (value,)


def test_a_key_of_several_columns_is_a_list_or_an_object() -> None:
    columns = pa.schema([("user", pa.string()), ("day", pa.int32())])
    assert key_of_text('["ada", 17]', columns) == ("ada", 17)
    assert key_of_text('{"day": 17, "user": null}', columns) == (None, 17)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("ada", [("id", pa.int64())]),
        ("300", [("id", pa.int8())]),
        ("ada", [("a", pa.string()), ("b", pa.string())]),
        ('["ada"]', [("a", pa.string()), ("b", pa.string())]),
        ('{"a": 1, "c": 2}', [("a", pa.string()), ("b", pa.string())]),
        ("[" * 10_000, [("a", pa.string()), ("b", pa.string())]),
        ('["ada", "x"]', [("a", pa.string()), ("b", pa.int64())]),
        ("9007199254740993", [("id", pa.float64())]),
        ("16777217", [("id", pa.float32())]),
        ("1e39", [("id", pa.float32())]),
        ("1e400", [("id", pa.float64())]),
        ("[1e400, 1]", [("a", pa.float64()), ("b", pa.int64())]),
        ('{"a": 7.9}', [("id", pa.struct({"a": pa.int64()}))]),
        ('{"a": 1, "b": 2}', [("id", pa.struct({"a": pa.int64()}))]),
        ('{"b": 1}', [("id", pa.struct({"a": pa.int64()}))]),
        ("[7.9]", [("id", pa.list_(pa.int64()))]),
    ],
)
def test_a_text_that_does_not_fit_is_refused(text: str, columns: list[tuple[str, pa.DataType]]) -> None:
    with pytest.raises(KeyTextError):
        key_of_text(text, pa.schema(columns))
