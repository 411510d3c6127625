"""Rows and messages of which every field has a value of its own, to show that each value is carried under its name."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Boolean, Float, Integer, String
from sqlalchemy.dialects.postgresql import JSONB

from keyscale.db.base import Base

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Column

Row = TypeVar("Row", bound=Base)


def distinct_row(table: type[Row], **given: Any) -> Row:
    """Returns a row whose columns differ from each other and from their defaults.

    Args:
        table: The class of the row.
        given: Columns that must have certain values.
    """
    numbers = count(1001)
    columns = (column for column in table.__table__.columns if column.computed is None)
    return table(**{column.name: _value(column, numbers) for column in columns} | given)


def _value(column: Column[Any], numbers: Iterator[int]) -> Any:
    kind = column.type
    if members := getattr(kind, "enum_class", None):
        return list(members)[-1]
    if isinstance(kind, Boolean):
        return True
    if isinstance(kind, Float):
        return next(numbers) + 0.5
    if isinstance(kind, Integer):
        return next(numbers)
    if isinstance(kind, JSONB):
        return {"of": column.name}
    assert isinstance(kind, String), f"{column} of {kind!r} needs a rule"
    return f"the {column.name}"


def fields_of(value: Any) -> Mapping[str, Any]:
    """Returns the fields of a row, a message, a dataclass or a mapping, by their names."""
    if isinstance(value, Base):
        return {column.name: getattr(value, column.name, None) for column in value.__table__.columns}
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value._asdict() if isinstance(value, tuple) else dict(value)


def uncarried(source: Any, target: Any, *, renamed: Mapping[str, str], derived: set[str]) -> dict[str, tuple[Any, Any]]:
    """Returns the fields of a target without the value of their source: what they have, and what they should have.

    Args:
        source: The source.
        target: The target.
        renamed: The names in the source of fields of the target that have other names there.
        derived: The fields of the target with values that are none of the source.
    """
    given, carried = fields_of(source), {**fields_of(target)}
    expected = {name: given.get(renamed.get(name, name), "nothing") for name in carried if name not in derived}
    return {name: (carried[name], value) for name, value in expected.items() if carried[name] != value}
