"""Each batch is once in the table of an SQLite file, whatever befalls the driver."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.sql import Row

from keyscale import SqliteSink
from keyscale.jobs.errors import SinkOccupiedError, SinkUnavailableError
from keyscale.jobs.sinks.sqlite import SqliteToken
from tests.support.repository import GOLDEN
from tests.support.sinks.driver import Host, SinkDriver, every_kill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.jobs.sinks.sink import SinkContext


class KilledSqliteSink(SqliteSink):
    """A sink whose driver may be killed before each transaction."""

    def __init__(self, path: Path, host: Host) -> None:
        super().__init__(str(path), lock_wait_s=0)
        self._host = host

    def _transaction(self) -> Any:
        self._host.act()
        return super()._transaction()


class Frame:
    """A batch with one row: its number and the attempt that computed it."""

    def __init__(self, batch_id: int, attempt: int) -> None:
        self._row = Row(batch=batch_id, attempt=attempt)

    def collect(self) -> list[Row]:
        return [self._row]


def read(path: Path, what: str = "SELECT row FROM rows ORDER BY rowid") -> list[Any]:
    with closing(sqlite3.connect(path)) as file:
        return [json.loads(row) for (row,) in file.execute(what)]


def driver_of(path: Path, host: Host | None = None) -> SinkDriver:
    return SinkDriver(lambda: KilledSqliteSink(path, host or Host()), Frame)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], Path]:
    numbers = iter(range(1_000))
    return lambda: tmp_path / f"{next(numbers)}.db"


def test_each_batch_is_visible_once_wherever_the_driver_is_killed(files: Callable[[], Path]) -> None:
    def play(host: Host) -> Path:
        driver_of(path := files(), host).run(2)
        return path

    for _, path in every_kill(play):
        assert [row["batch"] for row in read(path)] == [0, 1, 2]
        assert read(path, "SELECT row FROM staged") == []


def test_a_job_that_goes_back_replaces_the_later_batches(files: Callable[[], Path]) -> None:
    driver = driver_of(path := files())
    driver.run(2)
    driver.go_back(0)
    driver.run(1)
    assert read(path) == [{"batch": 0, "attempt": 1}, {"batch": 1, "attempt": 2}]


def test_a_batch_of_an_older_attempt_is_refused(files: Callable[[], Path]) -> None:
    driver = driver_of(files())
    old = driver.start()
    token = old.prepare(Frame(0, 1), driver.context(0))  # type: ignore[arg-type]
    driver.start()
    with pytest.raises(SinkOccupiedError, match="a newer attempt"):
        old.publish(token)


def test_a_file_of_another_sink_and_a_locked_file_are_refused(files: Callable[[], Path]) -> None:
    driver_of(path := files()).run(0)
    other: SinkContext = SinkDriver(lambda: SqliteSink(str(path)), Frame, attempt=9).context(0)
    sink = SqliteSink(str(path), lock_wait_s=0)
    with pytest.raises(SinkOccupiedError, match="belongs to sink out of job job"):
        sink.recover(type(other)("another", "out", -1, 1, "u"))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SinkUnavailableError, match="locked"):
            sink.recover(other)


def test_a_stored_token_is_read() -> None:
    token = json.loads((GOLDEN / "sink-tokens-v1.json").read_text())["sqlite"]
    assert msgspec.json.decode(token, type=SqliteToken) == SqliteToken(1, "0a1b2c3d", 1, 3)
