"""Moves of staged rows are committed together with their markers or not at all, against a model of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from psycopg.errors import CheckViolation, DeadlockDetected, LockNotAvailable, UndefinedTable

from keyscale.jobs.errors import SinkRowsRefusedError, SinkUnavailableError
from keyscale.jobs.sinks import postgres_moves
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from keyscale.jobs.sinks.sink import SinkContext

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "url"


@dataclass
class Transactions:
    """A database whose statements are rows: they are visible when their transaction is committed.

    Attributes:
        visible: All that a reader sees.
        fails: The errors of the next statements that are rows, or of the next commit.
        opened: All connections.
    """

    visible: list[str] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    opened: list[ModelConnection] = field(default_factory=list)

    def connected(self, _url: str, **settings: str) -> ModelConnection:
        self.opened.append(ModelConnection(self, settings))
        return self.opened[-1]


@dataclass
class ModelConnection:
    database: Transactions
    settings: dict[str, str]
    pending: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    closed: bool = False

    def execute(self, statement: str, _values: Any = None) -> None:
        if statement.startswith("SET"):
            self.said.append(statement)
            return
        self.pending.append(statement)
        self._fail()

    def transaction(self) -> ModelConnection:
        return self

    def __enter__(self) -> None:
        self.before = list(self.pending)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.pending = self.before

    def commit(self) -> None:
        self._fail()
        self.database.visible += self.pending
        self.pending = []

    def close(self) -> None:
        self.closed, self.pending = True, []

    def _fail(self) -> None:
        if self.database.fails:
            raise self.database.fails.pop(0)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transactions]:
    made = Transactions()
    monkeypatch.setattr(postgres_moves, "connected", made.connected)
    yield made
    OpenMoves._of_jobs.clear()


def moves(batch_id: int = 0, *, unique: str = "u", job_id: str = "job", uid: str = "out") -> OpenMoves:
    return OpenMoves.of(URL, SinkContext(job_id, uid, batch_id, 7, unique))


def move(of: OpenMoves, row: str) -> str | None:
    return of.try_move(cast("Any", row), {})


def finished(row: str) -> Any:
    def finish(connection: Any) -> bool:
        connection.execute(row)
        return True

    return finish


def test_the_rows_of_all_sinks_and_their_markers_appear_together(database: Transactions) -> None:
    for sink in ("orders", "items"):
        assert move(moves(uid=sink), f"row of {sink}") is None
        moves(uid=sink).keep(sink, finished(f"marker of {sink}"))
    assert (len(database.opened), database.visible) == (1, [])
    assert OpenMoves.commit(URL, "job", "orders")
    assert sorted(database.visible) == ["marker of items", "marker of orders", "row of items", "row of orders"]
    assert database.opened[0].closed
    assert not OpenMoves.commit(URL, "job", "items"), "they are committed already"


def test_nothing_appears_if_one_sink_may_no_longer_publish(database: Transactions) -> None:
    for sink, may in (("orders", True), ("items", False)):
        move(moves(uid=sink), "row")
        moves(uid=sink).keep(sink, lambda _, may=may: may)
    assert not OpenMoves.commit(URL, "job", "orders")
    assert (database.visible, database.opened[0].closed) == ([], True)


def test_a_batch_that_was_not_kept_is_not_committed(database: Transactions) -> None:
    move(moves(), "row")
    assert not OpenMoves.commit(URL, "job", "orders")
    moves().keep("another", finished("marker"))
    assert not OpenMoves.commit(URL, "job", "orders")
    assert not OpenMoves.commit(URL, "other job", "another")
    assert database.visible == []


def test_the_next_try_of_a_batch_undoes_the_moves_of_the_one_before(database: Transactions) -> None:
    move(moves(unique="first"), "row of first")
    moves(unique="first").keep("orders", finished("marker"))
    move(moves(unique="second"), "row of second")
    assert database.opened[0].closed
    moves(unique="second").keep("orders", finished("marker"))
    assert OpenMoves.commit(URL, "job", "orders")
    assert database.visible == ["row of second", "marker"]


def test_jobs_have_transactions_of_their_own_which_name_them_and_their_attempt(database: Transactions) -> None:
    assert moves() is not moves(job_id="other")
    names = [connection.settings["application_name"] for connection in database.opened]
    assert len({name.split(" ")[1] for name in names}) == 2
    assert [name.split(" ")[2] for name in names] == ["7", "7"]


def test_constraints_are_checked_before_the_batch_is_committed_and_no_lock_is_waited_for_without_end(
    database: Transactions,
) -> None:
    moves()
    assert "SET CONSTRAINTS ALL IMMEDIATE" in database.opened[0].said
    assert any("lock_timeout" in each for each in database.opened[0].said)


def test_a_refused_row_leaves_the_rows_before_it(database: Transactions) -> None:
    move(moves(), "good row")
    database.fails = [CheckViolation()]
    assert move(moves(), "bad row") == "CheckViolation (23514)"
    moves().keep("orders", finished("marker"))
    OpenMoves.commit(URL, "job", "orders")
    assert database.visible == ["good row", "marker"]


@pytest.mark.parametrize("error", [LockNotAvailable, DeadlockDetected])
def test_a_row_that_another_writer_has_locked_is_moved_later(database: Transactions, error: type[Exception]) -> None:
    database.fails = [error()]
    with pytest.raises(TimeoutError):
        move(moves(), "row")


def test_a_statement_that_is_refused_whatever_the_rows_fails_the_batch(database: Transactions) -> None:
    database.fails = [UndefinedTable()]
    with pytest.raises(SinkRowsRefusedError):
        move(moves(), "row")


def test_a_commit_without_an_answer_is_an_outage_and_is_not_tried_again_on_the_same_connection(
    database: Transactions,
) -> None:
    move(moves(), "row")
    moves().keep("orders", lambda _: True)
    database.fails = [psycopg.OperationalError("gone")]
    with pytest.raises(SinkUnavailableError):
        OpenMoves.commit(URL, "job", "orders")
    assert database.opened[0].closed
    assert not OpenMoves.commit(URL, "job", "orders")
