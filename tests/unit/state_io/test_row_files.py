"""Rows are written as CSV, JSON or Parquet, each value in a form that can be read, and a file is complete or absent."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from keyscale.state_io.row_files import RowFormat, lines_of, plain_value, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOON = dt.datetime(2026, 11, 29, 12, 0, 0, 1000, tzinfo=dt.UTC)
UUID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (1.5, 1.5),
        ("ä", "ä"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (b"\x00\xff", "AP8="),
        (Decimal(12), 12),
        (Decimal("12.50"), "12.50"),
        (Decimal("12.00"), "12.00"),
        (Decimal("1E+2"), "1E+2"),
        (NOON, "2026-11-29T12:00:00.001000+00:00"),
        (NOON.date(), "2026-11-29"),
        (dt.time(9, 5), "09:05:00"),
        (UUID, str(UUID)),
        ({"a": [b"a", {"b": NOON.date()}], "c": None}, {"a": ["YQ==", {"b": "2026-11-29"}], "c": None}),
        ([("home", 1), (7, float("nan"))], {"home": 1, "7": "NaN"}),
        ([({"x": 1}, "a")], {'{"x": 1}': "a"}),
        ([], []),
        ([1, None], [1, None]),
    ],
)
def test_each_value_has_a_plain_form(value: Any, plain: Any) -> None:
    assert plain_value(value) == plain
    json.dumps(plain_value(value), allow_nan=False)


ROWS = pa.table(
    {
        "key": [{"user": "a,b", "n": 1}, {"user": 'ä"', "n": None}],
        "value": pa.array([[1, 2], None], pa.list_(pa.int64())),
        "text": ["one\nline", None],
    }
)
BATCHES = [*ROWS.slice(0, 1).to_batches(), *ROWS.slice(1).to_batches()]


def test_the_lines_of_rows_are_csv_with_a_head_or_json() -> None:
    assert list(lines_of(BATCHES, ROWS.schema, RowFormat.CSV)) == [
        "key,value,text\n",
        '"{""user"": ""a,b"", ""n"": 1}","[1, 2]","one\nline"\n',
        '"{""user"": ""ä\\"""", ""n"": null}",,\n',
    ]
    assert list(lines_of(BATCHES, ROWS.schema, RowFormat.JSON)) == [
        '{"key": {"user": "a,b", "n": 1}, "value": [1, 2], "text": "one\\nline"}\n',
        '{"key": {"user": "ä\\"", "n": null}, "value": null, "text": null}\n',
    ]
    assert list(lines_of([], ROWS.schema, RowFormat.CSV)) == ["key,value,text\n"]


@pytest.mark.parametrize("form", RowFormat)
def test_a_file_appears_when_it_is_complete_and_replaces_the_one_before(tmp_path: Path, form: RowFormat) -> None:
    file = tmp_path / f"rows.{form}"
    file.write_text("earlier")
    seen: list[set[str]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in BATCHES:
            yield batch
            seen.append({each.name for each in tmp_path.iterdir()})
            assert file.read_text() == "earlier"

    assert write_rows(batches(), ROWS.schema, file, form) == 2
    assert seen == [{file.name, f"{file.name}.unfinished"}] * 2
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    if form is RowFormat.PARQUET:
        assert parquet.read_table(file).to_pylist() == ROWS.to_pylist()
    else:
        assert file.read_text(encoding="utf-8") == "".join(lines_of(BATCHES, ROWS.schema, form))
