"""A PostgreSQL server as far as the sink uses it: its statements, with transactions, locks and sessions.

Statements are known by their text; an unknown one is an error of the model. A transaction sees what was committed
before each of its statements, and its own changes. Others see the changes when they are committed. A session waits for
locks of other sessions, as long as its `lock_timeout` allows.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, Self

import psycopg
from psycopg.errors import (
    AdminShutdown,
    CheckViolation,
    DeadlockDetected,
    DuplicateTable,
    LockNotAvailable,
    RaiseException,
    UndefinedTable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

Row = dict[str, Any]
POLL_SECONDS = 0.2
MARKERS = "_keyscale_published"


class ServerHost(Protocol):
    """What the server asks of the world around it."""

    def act(self) -> None:
        """Comes before each effect; raises if the server does not answer."""

    def now(self) -> float:
        """Returns the time in seconds."""

    def wait(self, seconds: float) -> None:
        """Lets time pass."""

    def waited(self, session: Session, holder: Session, seconds: float) -> None:
        """Is told when a session has waited for another one."""

    def committed(self) -> None:
        """Is told when a transaction with changes has been committed."""

    def ended(self, session: Session) -> None:
        """Is told before a session is ended by another one."""


@dataclass(eq=False, slots=True)
class Table:
    """A table; rows are never changed, but replaced.

    Attributes:
        checks: Whether a row breaks a constraint, which staging tables copy.
        trigger: Whether the table's own trigger refuses a row.
    """

    columns: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    checks: Callable[[Row], bool] = lambda _: False
    trigger: Callable[[Row], bool] = lambda _: False


@dataclass(slots=True)
class Server:
    """The server.

    Attributes:
        host: The world around it.
        tables: What is committed, by name.
        sessions: All open sessions.
        shape: The digest of the tables' columns and constraints.
    """

    host: ServerHost
    tables: dict[str, Table] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    shape: str = "1"
    holders: dict[Hashable, dict[Session, bool]] = field(default_factory=dict)

    def connected(self, _url: str, **settings: str) -> Session:
        """Opens a session."""
        self.host.act()
        session = Session(self, settings.get("application_name", ""))
        self.sessions.append(session)
        return session

    def release(self, session: Session) -> None:
        """Releases all locks of a session."""
        for holders in self.holders.values():
            holders.pop(session, None)


class Result:
    """What a statement returns."""

    def __init__(self, rows: Sequence[tuple[Any, ...]] = (), columns: Sequence[str] = ()) -> None:
        self._rows = list(rows)
        self.description = [SimpleNamespace(name=name, type_display="int8") for name in columns]

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


class Session:
    """A connection, with one transaction after the other."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.name = name
        self.is_open = True
        self.changes: list[Callable[[dict[str, Table]], None]] = []
        self.waits_for: Session | None = None
        self._lock_timeout: float | None = None

    # The connection of psycopg

    def execute(self, query: Any, values: Any = ()) -> Result:
        """Runs a statement."""
        text = query if isinstance(query, str) else query.as_string(None)
        self._check_open()
        for pattern, run in _STATEMENTS:
            if found := pattern.match(text):
                result: Result | None = run(self, found, values)
                return result or Result()
        raise AssertionError(f"the model does not know {text}")

    def commit(self) -> None:
        self._server.host.act()
        self._check_open()
        self.apply()

    def rollback(self) -> None:
        """Undoes the changes of the transaction."""
        self.changes = []
        self._server.release(self)

    def close(self) -> None:
        """Ends the session; what is not committed is undone."""
        self.is_open = False
        self.changes = []
        self._server.release(self)
        if self in self._server.sessions:
            self._server.sessions.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A savepoint."""
        before = len(self.changes)
        try:
            yield
        except BaseException:
            del self.changes[before:]
            raise

    @contextmanager
    def cursor(self) -> Iterator[Self]:
        yield self

    @contextmanager
    def copy(self, statement: Any) -> Iterator[Self]:
        """Copies the rows that are written in the block."""
        found = re.match(r'COPY "(\w+)" \((.*)\) FROM STDIN', statement.as_string(None))
        assert found is not None
        name, columns = found[1], _names(found[2])
        self._server.host.act()
        self._check_open()
        self.lock(name)
        self.table(name)
        self._copied: list[Row] = []
        self._columns = columns
        yield self
        self._server.host.act()
        self._check_open()
        self.insert(name, self._copied)

    def write_row(self, row: Sequence[Any]) -> None:
        self._copied.append(dict(zip(self._columns, row, strict=True)))

    # What statements do

    def apply(self) -> None:
        """Commits, unless the session was ended."""
        changes, self.changes = self.changes, []
        for change in changes:
            change(self._server.tables)
        self._server.release(self)
        if changes:
            self._server.host.committed()

    def left_alone(self) -> Session:
        """Leaves the transaction to the server, which has not noticed that the client is gone; returns its session."""
        left = Session(self._server, self.name)
        left.changes, self.changes = self.changes, []
        for holders in self._server.holders.values():
            if self in holders:
                holders[left] = holders.pop(self)
        self._server.sessions.append(left)
        self.close()
        return left

    @property
    def shape(self) -> str:
        return self._server.shape

    @property
    def view(self) -> dict[str, Table]:
        """All that the session sees now."""
        if not self.changes:
            return self._server.tables
        seen = {name: replace(table, rows=list(table.rows)) for name, table in self._server.tables.items()}
        for change in self.changes:
            change(seen)
        return seen

    def table(self, name: str) -> Table:
        found = self.view.get(name)
        if found is None:
            raise UndefinedTable
        return found

    def insert(self, name: str, rows: list[Row]) -> None:
        self.require_valid(name, rows)
        self.change(lambda tables: tables[name].rows.extend(rows))

    def require_valid(self, name: str, rows: Sequence[Row]) -> None:
        table = self.table(name)
        if any(map(table.checks, rows)):
            raise CheckViolation
        if any(map(table.trigger, rows)):
            raise RaiseException

    def replace(self, name: str, gone: list[Row], rows: list[Row]) -> None:
        """Deletes rows that the session sees, and inserts others."""
        doomed = {id(row) for row in gone}

        def change(tables: dict[str, Table]) -> None:
            tables[name].rows[:] = [row for row in tables[name].rows if id(row) not in doomed] + rows

        self.change(change)

    def change(self, change: Callable[[dict[str, Table]], None]) -> None:
        self.changes.append(change)

    def act(self) -> None:
        """Is one effect on the server."""
        self._server.host.act()
        self._check_open()

    def set_lock_timeout(self, seconds: float) -> None:
        self._lock_timeout = seconds

    def lock(self, what: Hashable, *, alone: bool = False) -> None:
        """Takes a lock, alone or beside others that do not; waits for those who have it."""
        host, began = self._server.host, self._server.host.now()
        holders = self._server.holders.setdefault(what, {})
        while blocking := [each for each, is_alone in holders.items() if each is not self and (alone or is_alone)]:
            self.waits_for = blocking[0]
            waited = host.now() - began
            host.waited(self, blocking[0], waited)
            if self._is_deadlocked():
                self.waits_for = None
                raise DeadlockDetected
            if self._lock_timeout is not None and waited >= self._lock_timeout:
                self.waits_for = None
                raise LockNotAvailable
            host.wait(POLL_SECONDS)
            self._check_open()
        self.waits_for = None
        holders[self] = alone or holders.get(self, False)

    def end_older_sessions(self, prefix: str, attempt: int) -> None:
        for session in list(self._server.sessions):
            if session is not self and session.name.startswith(prefix) and int(session.name.split(" ")[2]) < attempt:
                self._server.host.ended(session)
                session.close()

    def _is_deadlocked(self) -> bool:
        seen, each = {self}, self.waits_for
        while each is not None and each not in seen:
            seen.add(each)
            each = each.waits_for
        return each is self

    def _check_open(self) -> None:
        if not self.is_open:
            raise AdminShutdown


def _names(text: str) -> list[str]:
    return [part.strip().strip('"') for part in text.split(",")]


def _describe(session: Session, found: re.Match[str], _: Any) -> Result:
    return Result(columns=session.table(found[1]).columns)


def _exists(session: Session, _: re.Match[str], values: Any) -> Result:
    return Result([(values[0].strip('"') in session.view,)])


def _advise(session: Session, _: re.Match[str], values: Any) -> None:
    session.lock(("advisory", *values), alone=True)


def _create_markers(session: Session, _: re.Match[str], __: Any) -> None:
    session.act()
    if MARKERS not in session.view:
        session.change(
            lambda tables: tables.setdefault(MARKERS, Table(("job_id", "uid", "attempt", "batch_id", "target")))
        )


def _create_like(session: Session, found: re.Match[str], _: Any) -> None:
    session.act()
    name, like = found[1], session.table(found[2])
    columns = (*like.columns, "_keyscale_task", "_keyscale_row")
    if name in session.view:
        raise DuplicateTable
    session.lock(name, alone=True)
    session.change(lambda tables: tables.update({name: Table(columns, checks=like.checks)}))


def _drop(session: Session, found: re.Match[str], _: Any) -> None:
    session.act()
    name, may_miss = found[2], found[1] is not None
    if name in session.view:
        session.lock(name, alone=True)
    if name not in session.view:
        if may_miss:
            return
        raise UndefinedTable
    session.change(lambda tables: tables.pop(name, None))


def _truncate(session: Session, found: re.Match[str], _: Any) -> None:
    session.act()
    name = found[1]
    session.lock(name, alone=True)
    session.table(name)
    session.change(lambda tables: tables[name].rows.clear())


def _set_marker(session: Session, _: re.Match[str], values: Any) -> None:
    session.act()
    job_id, uid, attempt, batch_id = values
    session.lock(("marker", job_id, uid), alone=True)
    before = _markers(session, job_id, uid)
    target = before[0]["target"] if before else None
    marker = {"job_id": job_id, "uid": uid, "attempt": attempt, "batch_id": batch_id, "target": target}
    session.replace(MARKERS, before, [marker])


def _set_target(session: Session, _: re.Match[str], values: Mapping[str, Any]) -> None:
    before = _markers(session, values["job"], values["uid"])
    if [row for row in before if row["target"] != values["target"]]:
        session.replace(MARKERS, before, [row | {"target": values["target"]} for row in before])


def _writers(session: Session, _: re.Match[str], values: Mapping[str, Any]) -> Result:
    """Finds the sinks of other jobs that write to a table."""
    job_id, uid, target = values["job"], values["uid"], values["target"]
    if any(row["target"] in {None, target} for row in _markers(session, job_id, uid)):
        return Result()
    others = [row for row in session.table(MARKERS).rows if row["job_id"] != job_id]
    origin = (values["origin"], uid)
    found = [
        (row["job_id"], row["uid"])
        for row in others
        if row["target"] == target or (row["target"] is None and (row["job_id"], row["uid"]) == origin)
    ]
    return Result(sorted(found))


def _markers(session: Session, job_id: str, uid: str) -> list[Row]:
    return [row for row in session.table(MARKERS).rows if (row["job_id"], row["uid"]) == (job_id, uid)]


def _read_marker(session: Session, _: re.Match[str], values: Any) -> Result:
    if _markers(session, *values):
        session.lock(("marker", *values), alone=True)
    return Result([(row["attempt"], row["batch_id"]) for row in _markers(session, *values)])


def _move(session: Session, found: re.Match[str], values: Mapping[str, Any]) -> None:
    """Moves the rows of some tasks; of rows with one key the last one counts."""
    session.act()
    target, into, chosen, stage = found[1], _names(found[2]), _names(found[4]), found[5]
    session.lock(stage)
    session.lock(target)
    if "some_tasks" in values:
        places = set(zip(values["some_tasks"], values["some_rows"], strict=True))
        rows = [row for row in session.table(stage).rows if _place(row) in places]
    else:
        rows = [row for row in session.table(stage).rows if row["_keyscale_task"] in values.get("tasks", ())]
    rows.sort(key=_place)
    made = [
        {name: row[value] if value in row else int(value) for name, value in zip(into, chosen, strict=True)}
        for row in rows
    ]
    keys = _names(found[3]) if found[3] else []
    if not keys:
        session.insert(target, made)
        return
    by_key = {tuple(row[name] for name in keys): row for row in made}
    for key in sorted(by_key):
        session.lock((target, key), alone=True)
    session.require_valid(target, list(by_key.values()))
    gone = [row for row in session.table(target).rows if tuple(row[name] for name in keys) in by_key]
    session.replace(target, gone, list(by_key.values()))


def _place(row: Row) -> tuple[int, int]:
    return row["_keyscale_task"], row["_keyscale_row"]


def _places(session: Session, found: re.Match[str], values: Any) -> Result:
    return Result(sorted(_place(row) for row in session.table(found[1]).rows if row["_keyscale_task"] in values[0]))


def _take_out(session: Session, found: re.Match[str], values: Any) -> Result:
    session.act()
    gone = [row for row in session.table(found[1]).rows if _place(row) == tuple(values)]
    session.replace(found[1], gone, [])
    return Result([(row,) for row in gone])


def _shape(session: Session, _: re.Match[str], __: Any) -> Result:
    return Result([(session.shape,)])


def _explain(session: Session, found: re.Match[str], _: Any) -> None:
    session.table(found[1])


def _take_back(session: Session, found: re.Match[str], _: Any) -> None:
    session.act()
    session.lock(found[1])
    gone = [row for row in session.table(found[1]).rows if row[found[2]] > int(found[3])]
    session.replace(found[1], gone, [])


def _list_tables(session: Session, _: re.Match[str], values: Any) -> Result:
    return Result([(name,) for name in sorted(session.view) if name.startswith(values[1])])


def _terminate(session: Session, _: re.Match[str], values: Any) -> None:
    session.end_older_sessions(*values)


def _set(session: Session, found: re.Match[str], _: Any) -> None:
    session.set_lock_timeout(float(found[1]))


def _nothing(_: Session, __: re.Match[str], ___: Any) -> None:
    return


def _one(_: Session, __: re.Match[str], ___: Any) -> Result:
    return Result([("1",)])


_STATEMENTS: tuple[tuple[re.Pattern[str], Callable[[Session, re.Match[str], Any], Result | None]], ...] = tuple(
    (re.compile(pattern), run)
    for pattern, run in (
        (r"SELECT to_regclass\(%s\) IS NOT NULL", _exists),
        (r"SELECT attempt, batch_id FROM .* FOR UPDATE", _read_marker),
        (r'SELECT \* FROM "(\w+)" LIMIT 0', _describe),
        (r"\s*SELECT md5\(", _shape),
        (r"SELECT 1 FROM pg_attribute", _one),
        (r"SELECT pg_advisory_xact_lock", _advise),
        (r"SELECT job_id, uid FROM", _writers),
        (r'SELECT "_keyscale_task", "_keyscale_row" FROM "(\w+)" WHERE', _places),
        (r"SELECT tablename FROM pg_tables", _list_tables),
        (r"SELECT pg_terminate_backend", _terminate),
        (r"CREATE TABLE IF NOT EXISTS", _create_markers),
        (r'CREATE TABLE "(\w+)" \(LIKE "(\w+)"', _create_like),
        (r'DROP TABLE (IF EXISTS )?"(\w+)"', _drop),
        (r'TRUNCATE "(\w+)"', _truncate),
        (r'EXPLAIN INSERT INTO .* FROM "(\w+)" WHERE', _explain),
        (r'EXPLAIN INSERT INTO "(\w+)"', _explain),
        (r'EXPLAIN DELETE FROM "(\w+)"', _explain),
        (r'DELETE FROM "(\w+)" AS staged WHERE', _take_out),
        (rf'INSERT INTO "{MARKERS}"', _set_marker),
        (r'INSERT INTO "(\w+)" \((.*?)\) SELECT (?:DISTINCT ON \((.*?)\) )?(.*?) FROM "(\w+)" WHERE', _move),
        (r'DELETE FROM "(\w+)" WHERE "(\w+)" > +(-?\d+)', _take_back),
        (r'UPDATE "(\w+)" SET target', _set_target),
        (r"SET lock_timeout = '(\d+)s'", _set),
        (r"SET ", _nothing),
    )
)


def gone() -> psycopg.OperationalError:
    """Returns the error of a client whose server does not answer."""
    return psycopg.OperationalError("the server does not answer")
