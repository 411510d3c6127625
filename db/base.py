"""The base of all models: names of constraints, column types, closed sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Enum, MetaData, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

if TYPE_CHECKING:
    from enum import StrEnum


class Base(DeclarativeBase):
    """The base of all models.

    Times are milliseconds since the epoch, UTC, in columns that end in `_at_ms`. Named constraints make migrations and
    errors readable.
    """

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - the name and form that SQLAlchemy reads
        int: BigInteger,
        str: Text,
        dict[str, Any]: JSONB(none_as_null=True),
        dict[str, str]: JSONB(none_as_null=True),
        list[dict[str, Any]]: JSONB(none_as_null=True),
        list[int]: JSONB(none_as_null=True),
        list[str]: JSONB(none_as_null=True),
        list[list[str]]: JSONB(none_as_null=True),
    }


def closed_set(members: type[StrEnum], name: str) -> Enum:
    """Returns an enumeration's column type: text, checked by the database.

    A new member needs no migration: `migrate` widens the check. A member that goes does.

    Args:
        members: The enumeration; every member's value equals its name.
        name: The name of the check constraint, without the table.
    """
    return Enum(members, name=name, native_enum=False, create_constraint=True, length=32)
