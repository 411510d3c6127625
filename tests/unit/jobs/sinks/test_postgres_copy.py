"""Values reach PostgreSQL in forms that it takes, and refused rows are readable."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from psycopg.types.json import Jsonb

from keyscale.jobs.sinks import postgres_copy
from keyscale.jobs.sinks.postgres_copy import CopyRows

NESTED = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])


def plain(value: Any) -> Any:
    """Returns a value, and for JSON its text."""
    return json.loads(postgres_copy._to_json(value.obj)) if isinstance(value, Jsonb) else value


@pytest.mark.parametrize(
    ("kind", "given", "sent", "is_json"),
    [
        (pa.int64(), [1, None], [1, None], False),
        (pa.list_(pa.int64()), [[1, None], None, []], [[1, None], None, []], False),
        (pa.list_(NESTED), [[{"a": 1, "b": ["x"]}], None], [[{"a": 1, "b": ["x"]}], None], True),
        (pa.list_(pa.list_(pa.int64())), [[[1], []]], [[[1], []]], True),
        (pa.list_(pa.int64(), 2), [[1, 2]], [[1, 2]], True),
        (NESTED, [{"a": None, "b": None}, None], [{"a": None, "b": None}, None], True),
        (pa.map_(pa.string(), pa.int64()), [[("k", 1), ("l", None)]], [{"k": 1, "l": None}], True),
        (pa.struct([("at", pa.date32())]), [{"at": dt.date(2026, 1, 2)}], [{"at": "2026-01-02"}], True),
    ],
)
def test_nested_values_are_json_and_lists_of_plain_values_are_arrays(
    kind: pa.DataType, given: list[Any], sent: list[Any], is_json: bool
) -> None:
    found = postgres_copy._values(pa.array(given, kind))
    assert [plain(value) for value in found] == sent
    assert {isinstance(value, Jsonb) for value in found if value is not None} == {is_json}


def test_rows_are_numbered_over_all_batches_of_a_task() -> None:
    batches = [pa.record_batch({"a": values, "b": list(map(str, values))}) for values in ([5, 6], [], [7], [8])]
    found = list(postgres_copy._numbered(iter(batches), 42))
    assert found == [[(5, "5", 42, 0), (6, "6", 42, 1)], [], [(7, "7", 42, 2)], [(8, "8", 42, 3)]]


def test_a_refused_row_is_shown_with_the_streams_columns_alone() -> None:
    copy = CopyRows("postgresql://user:word@host", "session", '"stage"', ("raw", "at", "more", "price"), "out", True)
    row = (b"\x00\xff", dt.datetime(2026, 1, 2, tzinfo=dt.UTC), Jsonb({"a": [1]}), Decimal("1.50"), 42, 0)
    assert json.loads(copy._as_json(row)) == {
        "raw": "\\x00ff",
        "at": "2026-01-02 00:00:00+00:00",
        "more": {"a": [1]},
        "price": "1.50",
    }
    assert "word" not in repr(copy)
