"""SQL over the state in a snapshot."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ...shapes import Answer, Request


class SqlRequest(Request):
    """A statement over the state in a checkpoint or savepoint."""

    statement: str = Field(
        max_length=20_000,
        description='One SELECT in DuckDB\'s SQL; each state is a table "operator"."state".',
        examples=["select key.user, value from counts.clicks order by value desc limit 10"],
    )
    rows_max: int = Field(default=1000, ge=1, le=10_000, description="The result is cut after this many rows.")


class SqlColumn(Answer):
    """A column of a result."""

    name: str
    type: str


class SqlAnswer(Answer):
    """The rows of a statement."""

    columns: list[SqlColumn]
    rows: list[list[Any]]
    is_truncated: bool = Field(description="Whether there are more rows than `rows_max`.")
