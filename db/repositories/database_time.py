"""The database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, cast, func, select

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def database_now_ms(session: Session) -> int:
    """Returns milliseconds since the epoch, by the database's clock."""
    return session.scalars(select(cast(func.extract("epoch", func.clock_timestamp()) * 1000, BigInteger))).one()
