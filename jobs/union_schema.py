"""The one schema, and the one timestamp column, of several streams. Pure."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.errors import UnionSchemaError, UnionTimestampsError
from jobs.nodes import Timestamps

if TYPE_CHECKING:
    from collections.abc import Sequence


def union_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns that all of them have; one may be null if it may be null in any.

    Raises:
        UnionSchemaError: They differ in a column's name, type or place; the message says where.
    """
    first, *others = schemas
    for number, other in enumerate(others, 2):
        for place, (wanted, found) in enumerate(zip_longest(first, other), 1):
            if wanted is None or found is None or (wanted.name, wanted.type) != (found.name, found.type):
                message = (
                    f"column {place} of stream {number} of the union is {_described(found)},"
                    f" that of the first one is {_described(wanted)}"
                )
                raise UnionSchemaError(message)
    nullable = [any(schema.field(place).nullable for schema in schemas) for place in range(len(first))]
    return pa.schema([field.with_nullable(null) for field, null in zip(first, nullable, strict=True)])


def union_timestamps(timestamps: Sequence[Timestamps | None]) -> Timestamps | None:
    """Where the records of all have their event time: in the same column, or none has any.

    Raises:
        UnionTimestampsError: Otherwise.
    """
    known = [each for each in timestamps if each is not None]
    columns = {each.column for each in known}
    if len(columns) > 1 or 0 < len(known) < len(timestamps):
        found = ", ".join("none" if each is None else repr(each.column) for each in timestamps)
        message = f"the timestamp columns of the streams of a union are: {found}"
        raise UnionTimestampsError(message)
    if not known:
        return None
    return Timestamps(known[0].column, max(each.out_of_orderness_ms for each in known))


def _described(field: pa.Field | None) -> str:
    return "missing" if field is None else f"{field.name!r} ({field.type})"
