"""Shows which conditions and orders of queries decide nothing: with or without each of them, a query finds the same."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.errors import CardinalityViolation
from sqlalchemy import event, false, true
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.sql import Delete, Select, Update, operators, visitors
from sqlalchemy.sql.elements import BooleanClauseList

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from sqlalchemy import Connection, Engine


class Part(NamedTuple):
    """A part of a query.

    Attributes:
        query: The module and the function that made the query.
        kind: `condition`, `alternative` or `order`.
        text: The part as SQL.
    """

    query: str
    kind: str
    text: str


class ConditionWatch:
    """Runs each query of a package once more without each of its conditions, alternatives and orders.

    A part decides once a query has found something else without it. A test that expects what a query finds then fails
    when the part is forgotten.

    Args:
        package: The package of the queries.
    """

    def __init__(self, package: str) -> None:
        self._package = f"{package}."
        self._decides: dict[Part, bool] = {}
        self._is_trying = False

    @property
    def undecided(self) -> set[Part]:
        """The parts that have decided nothing so far."""
        return {part for part, decides in self._decides.items() if not decides}

    @contextmanager
    def watching(self, engine: Engine) -> Iterator[None]:
        """Watches the statements of an engine."""
        event.listen(engine, "before_execute", self._before_execute)
        try:
            yield
        finally:
            event.remove(engine, "before_execute", self._before_execute)

    def _before_execute(
        self, connection: Connection, statement: Any, many: Any, parameters: Any, _options: Any
    ) -> None:
        if self._is_trying or not isinstance(statement, (Select, Update, Delete)):
            return
        query = self._query_of(sys._getframe())
        if query is not None:
            self._is_trying = True
            try:
                self._try_parts(connection, statement, many or parameters, query)
            finally:
                self._is_trying = False

    def _query_of(self, frame: FrameType | None) -> str | None:
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module == "sqlalchemy.orm.unitofwork":  # it writes what has changed, and asks nothing
                return None
            if module.startswith(self._package):
                return f"{module.removeprefix(self._package)}.{frame.f_code.co_name}"
            frame = frame.f_back
        return None

    def _try_parts(self, connection: Connection, statement: Any, parameters: Any, query: str) -> None:
        found: Any = None
        for kind, text, element, instead in _parts(statement):
            part = Part(query, kind, text)
            if self._decides.setdefault(part, False):
                continue
            if found is None:
                found = _outcome(connection, statement, parameters)
            changed = visitors.replacement_traverse(statement, {}, _replacement(element, instead))
            self._decides[part] = _outcome(connection, changed, parameters) != found


def _parts(statement: Any) -> Iterator[tuple[str, str, Any, Any]]:
    """Yields the kind and text of each part, an element of the statement, and what takes its place without the part."""
    for element in visitors.iterate(statement):
        conditions = [each for each in getattr(element, "_where_criteria", ()) if not _is_list(each, operators.and_)]
        if _is_list(element, operators.and_):  # of a WHERE, of a join, or within an OR
            conditions = list(element.clauses)
        for each in conditions:
            if str(each) != "true":
                yield "condition", _text(each), each, true()
        if _is_list(element, operators.or_):
            for each in element.clauses:
                yield "alternative", _text(each), each, false()
        if isinstance(element, Select):
            orders = element._order_by_clauses
            for index, each in enumerate(orders):
                changed = (*orders[:index], _reversed(each), *orders[index + 1 :])
                yield "order", _text(each), element, element.order_by(None).order_by(*changed)


def _text(part: Any) -> str:
    """Returns a part as SQL, which is the same for every number of values."""
    text = re.sub(r"ARRAY\[[^]]*\]", "ARRAY[...]", " ".join(str(part).split()))
    return re.sub(r"(?<=:)(\w+)_\d+\b", r"\1", text)


def _is_list(element: Any, operator: Any) -> bool:
    return isinstance(element, BooleanClauseList) and element.operator is operator


def _reversed(order: Any) -> Any:
    if order.__visit_name__ == "label_reference":
        return _reversed(order.element)
    modifier = getattr(order, "modifier", None)
    if modifier is operators.nulls_last_op:
        return _reversed(order.element).nulls_last()
    return order.element.asc() if modifier is operators.desc_op else order.desc()


def _replacement(element: Any, instead: Any) -> Any:
    return lambda each: instead if each is element else None


def _outcome(connection: Connection, statement: Any, parameters: Any) -> Any:
    """Returns the rows that a statement finds, and how many it changes, and undoes the changes."""
    with connection.begin_nested() as attempt:
        try:
            result = connection.execute(statement, parameters)
            return [tuple(row) for row in result] if result.returns_rows else [], result.rowcount
        except ProgrammingError as error:
            if not isinstance(error.orig, CardinalityViolation):
                raise
            return "a subquery found several rows"
        finally:
            attempt.rollback()
