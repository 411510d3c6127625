"""The PostgreSQL sink knows which columns of a table would round a stream's values."""

from __future__ import annotations

import pytest

from keyscale.jobs.sinks.postgres_columns import columns_that_lose, loses


@pytest.mark.parametrize(
    ("of_stream", "of_table"),
    [
        ("double", "float4"),
        ("bigint", "float8"),
        ("int", "float4"),
        ("decimal(10,2)", "float8"),
        ("decimal(10,2)", "numeric(10, 1)"),
        ("decimal(10,2)", "numeric(10)"),
        ("double", "numeric(10, 2)"),
        ("timestamp", "date"),
        ("timestamp_ntz", "date"),
        ("timestamp", "timestamptz(0)"),
        ("timestamp_ntz", "timestamp(3)"),
    ],
)
def test_a_column_that_would_round_is_named(of_stream: str, of_table: str) -> None:
    assert loses(of_stream, of_table)
    assert columns_that_lose({"it": of_stream, "other": "int"}, {"it": of_table, "other": "int4"}) == [
        f"it ({of_stream} into {of_table})"
    ]


@pytest.mark.parametrize(
    ("of_stream", "of_table"),
    [
        ("double", "float8"),
        ("float", "float4"),
        ("int", "float8"),
        ("bigint", "int4"),  # PostgreSQL refuses what is out of range
        ("bigint", "numeric"),
        ("decimal(10,2)", "numeric(12, 2)"),
        ("decimal(10,2)", "numeric"),
        ("double", "numeric"),
        ("timestamp", "timestamptz"),
        ("date", "date"),
        ("string", "text"),
        ("array<int>", "_int4"),
    ],
)
def test_a_column_that_keeps_its_values_is_taken(of_stream: str, of_table: str) -> None:
    assert not loses(of_stream, of_table)
