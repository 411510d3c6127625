"""Pages of a query: each begins after the previous page's last row.

So every page costs the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Select, tuple_

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import InstrumentedAttribute, Session

LIMIT_MAX = 1000
Row = TypeVar("Row")
Statement = TypeVar("Statement", bound=Select[*tuple[Any, ...]])


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The wanted part of a list.

    Attributes:
        limit: The largest number of rows.
        after: The key of the previous page's last row; None: the first page.
    """

    limit: int = LIMIT_MAX
    after: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """A part of a list, with the next part's key or None."""

    rows: Sequence[Row]
    next: tuple[Any, ...] | None


def read_page(
    session: Session,
    statement: Select[Row],
    key: Sequence[InstrumentedAttribute[Any]],
    wanted: PageRequest,
) -> Page[Row]:
    """Returns a page in descending order of a unique key.

    It takes one statement.

    Args:
        session: The transaction.
        statement: Selects the whole list, of one entity.
        key: The columns of the key; an index in this order makes every page equally fast.
        wanted: The part of the list.
    """
    rows = session.scalars(_limited(statement, key, wanted)).all()
    return _page(rows, wanted, lambda row: tuple(getattr(row, column.key) for column in key))


def read_keys(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    key: Sequence[InstrumentedAttribute[Any]],
    wanted: PageRequest,
) -> Page[tuple[Any, ...]]:
    """Returns a page of keys alone, selected by the statement.

    Else as `read_page`.
    """
    rows = session.execute(_limited(statement, key, wanted)).all()
    return _page([tuple(row) for row in rows], wanted, lambda row: row)


def _limited(statement: Statement, key: Sequence[InstrumentedAttribute[Any]], wanted: PageRequest) -> Statement:
    if wanted.after is not None:
        statement = statement.where(tuple_(*key) < wanted.after)
    return statement.order_by(*(column.desc() for column in key)).limit(wanted.limit + 1)


def _page(rows: Sequence[Row], wanted: PageRequest, key_of: Callable[[Row], tuple[Any, ...]]) -> Page[Row]:
    if len(rows) <= wanted.limit:
        return Page(rows, None)
    return Page(rows[: wanted.limit], key_of(rows[wanted.limit - 1]))
