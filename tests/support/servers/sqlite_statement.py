"""The statements of the platform in SQLite's words."""

# ruff: noqa: S608 - the parts come from the platform's statements

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects.postgresql import JSONB

from keyscale.db.models import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Parameters = tuple[Any, ...]
_DOCUMENTS = {
    column.name for table in Job.metadata.tables.values() for column in table.columns if isinstance(column.type, JSONB)
}
_VALUE = r"(\?|[\w.]+)"
_MODIFYING_WITH = re.compile(r"\s*WITH \w+ AS \(\s*DELETE ")
_CHANGING_BY_OTHERS = re.compile(r"\s*UPDATE (\w+) (\w+) SET (.*?)\s+FROM (\w+ \w+, .*)RETURNING (.*)", re.DOTALL)


@cache
def sqlite_statement(statement: str) -> str:
    """Returns a statement that does in SQLite what the given one does in PostgreSQL.

    What has no counterpart is left as it is, and SQLite refuses it.
    """
    for pattern, replacement in _RULES:
        statement = re.sub(pattern, replacement, statement)
    return _without_lateral(_without_places(statement))


def sqlite_parts(statement: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
    """Returns the statements, with their parameters, that do one after the other what a statement does in PostgreSQL.

    SQLite cannot change rows within a `WITH`, nor return columns of another table than the changed one. A temporary
    table keeps the rows instead.
    """
    statement = sqlite_statement(statement)
    if _MODIFYING_WITH.match(statement):
        return list(_parts_of_with(statement, parameters))
    if changing := _CHANGING_BY_OTHERS.fullmatch(statement):
        table, alias, values, of_rows, returned = changing.groups()
        found = parameters[values.count("?") :]
        changed = f"SELECT {returned} FROM {table} AS {alias}, {of_rows}"
        return [
            *_as_table("changed", changed, found),
            (f"UPDATE {table} AS {alias} SET {values} FROM {of_rows}", parameters),
            (f"SELECT {', '.join(map(_read, returned.split(', ')))} FROM changed", ()),
        ]
    return [(statement, parameters)]


def _parts_of_with(statement: str, parameters: Parameters) -> Iterator[tuple[str, Parameters]]:
    rest = statement.lstrip().removeprefix("WITH")
    while named := re.match(r",?\s*(\w+) AS \(", rest):
        body, rest = _closed(rest[named.end() :])
        used, parameters = parameters[: body.count("?")], parameters[body.count("?") :]
        deleting = re.fullmatch(r"\s*DELETE (FROM \w+ WHERE .*)RETURNING .*", body, re.DOTALL)
        if deleting is None:
            yield body, used
        else:
            yield from _as_table(named[1], f"SELECT * {deleting[1]}", used)
            yield f"DELETE {deleting[1]}", used
    yield rest, parameters


def _read(column: str) -> str:
    name = column.strip().rpartition(".")[2]
    return f'{name} AS "{name} [array]"' if name in _DOCUMENTS else name  # the driver reads the name's type


def _as_table(name: str, query: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
    return [(f"DROP TABLE IF EXISTS temp.{name}", ()), (f"CREATE TEMP TABLE {name} AS {query}", parameters)]


def _named_columns(values: re.Match[str]) -> str:
    rows, table, names = values.groups()
    first, *others = re.split(r"\),\s*\(", rows.strip().removeprefix("(").removesuffix(")"))
    named = ", ".join(f"{value} AS {name}" for value, name in zip(first.split(", "), names.split(", "), strict=True))
    return f"({' UNION ALL '.join(f'SELECT {row}' for row in (named, *others))}) AS {table}"


def _rows_of_lists(lists: re.Match[str]) -> str:
    _, table, names = lists.groups()
    first, *others = names.split(", ")
    columns = ", ".join(f"{name}.value AS {name}" for name in (first, *others))
    joined = "".join(f" JOIN json_each(?) AS {name} ON {name}.key = {first}.key" for name in others)
    return f"(SELECT {columns} FROM json_each(?) AS {first}{joined}) AS {table}"


def _record(table: re.Match[str]) -> str:
    names = Job.metadata.tables[table[1]].columns.keys()
    columns = ", ".join(f"json_extract(document, '$.{name}') AS {name}" for name in names)
    return f"(SELECT {columns} FROM (SELECT ? AS document))"


_RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"::\w+(\[\])?", ""),
    (r"\bxmin\b", "rowid"),  # which does not change with its row
    (r"string_agg\((.*?), ','(?:\s+ORDER BY [\w.]+)?\)", r"group_concat(\1, ',')"),
    (rf"{_VALUE} = CAST\(\? AS jsonb\)", r"jsonb_is(\1, ?)"),
    (r" FOR UPDATE\b", ""),
    (r"OFFSET (\?) LIMIT 1\b", r"LIMIT 1 OFFSET \1"),
    (rf"(?i)CAST\({_VALUE} AS (jsonb|text\[\]|bigint\[\])\)", r"\1"),
    (r"unnest\((\?(?:, \?)*)\)\s+AS (\w+)\(([^)]*)\)", _rows_of_lists),
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


def _without_places(statement: str) -> str:
    """Finds rows by SQLite's place of a row instead of PostgreSQL's."""
    before, found, rest = statement.partition("ctid = ANY (ARRAY(")
    if not found:
        return statement
    inner, after = _closed(rest)
    return f"{before}rowid IN ({inner.replace('ctid', 'rowid')}{after}"


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
