"""Finds the rows that two snapshots of a job do not share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from keyscale.errors import KeyscaleError

from .row_files import plain_value
from .state_reader import KeyedStateTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from keyscale.state.doors.reading import RawEntry

    from .state_reader import StateReader, StateTable

ChangeKind: TypeAlias = Literal["added", "removed", "changed"]
_TOGETHER = 1000


class NotComparableError(KeyscaleError):
    """Two states have their keys in different key groups."""

    code = "STATE_NOT_COMPARABLE"
    domain = "user"
    advice = "Compare two snapshots of the same job; a clone may divide its keys in another way."


@dataclass(frozen=True, slots=True)
class Change:
    """A row that differs.

    Attributes:
        kind: What became of it.
        row: The columns that identify the row.
        before: Its value before; None for an added row.
        after: Its value after; None for a removed row.
    """

    kind: ChangeKind
    row: Mapping[str, Any]
    before: Any = None
    after: Any = None


@dataclass(slots=True)
class TableDifference:
    """The differences of one state.

    Attributes:
        operator: The operator's uid.
        state: The state's name.
        counts: How many rows differ, by kind; complete after the last change.
    """

    operator: str
    state: str
    counts: Counter[ChangeKind] = field(default_factory=Counter)
    _before: StateTable | None = None
    _after: StateTable | None = None

    def changes(self) -> Iterator[Change]:
        """Yields the rows that differ; times of TTLs do not count.

        The rows of a keyed state have the order of stored keys. The elements of operator lists are compared without
        their place, since a rescale moves them.

        Raises:
            KeyscaleError: The store does not answer, or a file is missing or damaged.
        """
        for change in self._found():
            self.counts[change.kind] += 1
            yield change

    def _found(self) -> Iterator[Change]:
        before, after = self._before, self._after
        if isinstance(before, KeyedStateTable) and isinstance(after, KeyedStateTable):
            if _identity(before) == _identity(after):
                yield from _changed_entries(before, after)
                return
        elif before is not None and after is not None and _identity(before) == _identity(after):
            yield from _changed_elements(before, after)
            return
        yield from () if before is None else _whole(before, "removed")
        yield from () if after is None else _whole(after, "added")


def differences(before: StateReader, after: StateReader, operator: str | None = None) -> list[TableDifference]:
    """Returns the differences of two states, by operator and state.

    Args:
        before: The earlier state.
        after: The later state.
        operator: Only the states of this operator; None: of all operators.

    Raises:
        NotComparableError: The states have other key groups.
        KeyscaleError: The store does not answer, or a file is missing or damaged.
    """
    old, new = before.point, after.point
    if (old.max_parallelism, old.hash_id) != (new.max_parallelism, new.hash_id):
        raise NotComparableError(
            f"one has {old.max_parallelism} key groups by the {old.hash_id} hash, and one has {new.max_parallelism} by"
            f" the {new.hash_id} hash"
        )
    tables: dict[tuple[str, str], list[StateTable | None]] = {}
    for place, reader in enumerate((before, after)):
        for uid in reader.operators:
            for table in reader.tables(uid) if operator in {None, uid} else []:
                tables.setdefault((uid, table.name), [None, None])[place] = table
    return [TableDifference(uid, name, _before=pair[0], _after=pair[1]) for (uid, name), pair in sorted(tables.items())]


def _identity(table: StateTable) -> list[Any]:
    return [table.schema.field(name) for name in table.identity]


def _whole(table: StateTable, kind: ChangeKind) -> Iterator[Change]:
    for batch in table.batches():
        for row in batch.to_pylist():
            yield _change(table, kind, row)


def _change(table: StateTable, kind: ChangeKind, row: Mapping[str, Any], after: Any = None) -> Change:
    identity = {name: row[name] for name in table.identity}
    value = row.get("value")
    if kind == "added":
        return Change(kind, identity, after=value)
    return Change(kind, identity, before=value, after=after)


def _changed_entries(before: KeyedStateTable, after: KeyedStateTable) -> Iterator[Change]:
    pairs = _unequal(before.entries(), after.entries())
    while some := list(islice(pairs, _TOGETHER)):
        old = iter(_rows(before, [one for one, _ in some if one is not None]))
        new = iter(_rows(after, [other for _, other in some if other is not None]))
        for one, other in some:
            if other is None:
                yield _change(before, "removed", next(old))
            elif one is None:
                yield _change(after, "added", next(new))
            else:
                was, now = next(old), next(new)
                if was.get("value") != now.get("value"):
                    yield _change(before, "changed", was, now["value"])


def _rows(table: KeyedStateTable, entries: list[RawEntry]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.stored.batch(entries).to_pylist()
    return rows


def _unequal(old: Iterator[RawEntry], new: Iterator[RawEntry]) -> Iterator[tuple[RawEntry | None, RawEntry | None]]:
    """Yields unequal entries of two ordered streams, in pairs."""
    one, other = next(old, None), next(new, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            yield one, None
            one = next(old, None)
        elif one is None or other[0] < one[0]:
            yield None, other
            other = next(new, None)
        else:
            if one[1] != other[1]:
                yield one, other
            one, other = next(old, None), next(new, None)


def _changed_elements(before: StateTable, after: StateTable) -> Iterator[Change]:
    old, new = ([row for batch in table.batches() for row in batch.to_pylist()] for table in (before, after))
    if "map_key" in before.identity:
        was, now = ({repr(row["map_key"]): row for row in rows} for rows in (old, new))
        for name, row in was.items():
            if name not in now:
                yield _change(before, "removed", row)
            elif now[name]["value"] != row["value"]:
                yield _change(before, "changed", row, now[name]["value"])
        yield from (_change(after, "added", row) for name, row in now.items() if name not in was)
        return
    for table, rows, others, kind in ((before, old, new, "removed"), (after, new, old, "added")):
        left = Counter(repr(plain_value(row["value"])) for row in others)
        for row in rows:
            text = repr(plain_value(row["value"]))
            left[text] -= 1
            if left[text] < 0:
                yield _change(table, "removed" if kind == "removed" else "added", row)
