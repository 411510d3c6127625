"""The statements of the platform in SQLite's words."""

# ruff: noqa: S608 - the parts come from the platform's statements

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from keyscale.db.models import Job

if TYPE_CHECKING:
    from collections.abc import Callable

_VALUE = r"(\?|[\w.]+)"


@cache
def sqlite_statement(statement: str) -> str:
    """Returns a statement that does in SQLite what the given one does in PostgreSQL.

    What has no counterpart is left as it is, and SQLite refuses it.
    """
    for pattern, replacement in _RULES:
        statement = re.sub(pattern, replacement, statement)
    return _without_lateral(statement)


def _named_columns(values: re.Match[str]) -> str:
    rows, table, names = values.groups()
    first, *others = re.split(r"\),\s*\(", rows.strip().removeprefix("(").removesuffix(")"))
    named = ", ".join(f"{value} AS {name}" for value, name in zip(first.split(", "), names.split(", "), strict=True))
    return f"({' UNION ALL '.join(f'SELECT {row}' for row in (named, *others))}) AS {table}"


def _record(table: re.Match[str]) -> str:
    names = Job.metadata.tables[table[1]].columns.keys()
    columns = ", ".join(f"json_extract(document, '$.{name}') AS {name}" for name in names)
    return f"(SELECT {columns} FROM (SELECT ? AS document))"


_RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"::\w+(\[\])?", ""),
    (rf"(?i)CAST\({_VALUE} AS (jsonb|text\[\])\)", r"\1"),
    (r"SELECT\s+FROM", "SELECT 1 FROM"),
    (r"(?i)extract\(epoch FROM \w+\(\)\)", "clock_seconds()"),
    (r"CAST\(STRFTIME\('%s', clock_timestamp\(\)\) AS INTEGER\)", "clock_seconds()"),
    (r"= ANY ?\(\?\)", "IN (SELECT value FROM json_each(?))"),
    (rf"{_VALUE} @> {_VALUE}", r"jsonb_contains(\1, \2)"),
    (rf"{_VALUE} \?\| (json_array\([?, ]*\))", r"jsonb_has_any(\1, \2)"),
    (r"SELECT unnest\((json_array\([?, ]*\))\) AS (\w+)", r"SELECT value AS \2 FROM json_each(\1)"),
    (r"SELECT jsonb_array_elements_text\(([\w.]+)\) AS (\w+)\s+FROM ", r"SELECT value AS \2 FROM json_each(\1), "),
    (r"(?s)\(\s*VALUES (.*?)\) (?:AS )?(\w+) \((\w+(?:, \w+)*)\)", _named_columns),
    (r"SELECT min\((\w+)\) AS \1\s+FROM ([^()]+)\)", r"SELECT \1 FROM \2 ORDER BY \1 LIMIT 1)"),
    (r"jsonb_build_object\(", "json_object("),
    (r"SET idle_session_timeout = '\w+'", "SELECT 1"),
    (r"array_agg\((\w+)\)", r'json_group_array(\1) AS "\1 [array]"'),  # the driver reads the name's type
    (r"jsonb_populate_record\(CAST\(NULL AS (\w+)\), \?\)", _record),
    (r"( AS point)(\s+ON CONFLICT)", r"\1 WHERE true\2"),  # or else the conflict would be a join's condition
]


def _without_lateral(statement: str) -> str:
    """Joins each lateral query's table by the rows that the query finds."""
    while "LATERAL (" in statement:
        before, _, rest = statement.partition("LATERAL (")
        inner, after = _closed(rest)
        query = re.match(r"\s*SELECT (.*?)\s+FROM ((\w+)(?: (?!WHERE)(\w+))?)\s", inner, re.DOTALL)
        named = re.match(r" (?:AS )?(\w+) ON (?:1 = 1|true)", after)
        if query is None or named is None:
            return statement
        columns, source, table, alias = query.groups()
        row = f"{alias or table}.rowid"
        found = f"SELECT {row} {inner[query.end(1) :]}"
        joined = f"(SELECT {columns}, {row} AS row FROM {source}) AS {named[1]} ON {named[1]}.row IN ({found})"
        statement = before + joined + after[named.end() :]
    return statement


def _closed(text: str) -> tuple[str, str]:
    """Divides a text at the parenthesis that closes it."""
    depth = 1
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return text[:at], text[at + 1 :]
    raise ValueError(text)
