"""The process that runs one SQL statement over state: `python -m keyscale.state_io.sql_process`.

It reads a request as JSON, writes the rows as an Arrow stream, and reports its end in a line of JSON on standard error.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import duckdb
import pyarrow as pa

from keyscale.errors import KeyscaleError

from .sql import SqlLimitError, SqlReadError, SqlStatementError
from .state_reader import StateReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .state_reader import StateTable

_OVERHEAD_BYTES = 1 << 30  # for Python, Arrow and RocksDB
_BATCH_ROWS = 4096
_SHARDS_OPEN = 64
_MESSAGE_CHARACTERS_MAX = 2000
_ALLOWED = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "2",
}


def main() -> int:
    """Carries out the request on standard input; returns the exit code."""
    logging.disable()
    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    _limit_process(request["memory_bytes"], request["seconds"])
    report: dict[str, Any]
    try:
        report = {"is_truncated": _run(request)}
    except (SqlStatementError, SqlLimitError, SqlReadError) as error:
        report = {"code": error.code, "message": str(error)}
    except KeyscaleError as error:
        report = {"code": SqlReadError.code, "message": f"{error.code}: {error}"}
    except MemoryError:
        report = {"code": SqlLimitError.code, "message": "the process has reached its limit of memory"}
    sys.stderr.write(f"\n{json.dumps(report)}\n")
    return 1 if "code" in report else 0


def _run(request: Mapping[str, Any]) -> bool:
    """Writes the rows of the statement; returns whether rows were cut."""
    scratch = None if request["scratch"] is None else Path(request["scratch"])
    with (
        StateReader.open(request["location"], scratch=scratch, shards_open=_SHARDS_OPEN) as state,
        StateDatabase(state.tables(), request["memory_bytes"]) as database,
        database.rows(request["statement"]) as rows,
    ):
        return _write(rows, request["rows_max"])


class StateDatabase:
    """A database with only the tables of state.

    Statements can reach neither the file system nor the network nor the settings. Use it in a `with` statement.
    """

    def __init__(self, tables: Iterable[StateTable], memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._streams = [_Stream(table) for table in tables]
        self._database = duckdb.connect(":memory:", config={**_CLOSED, "memory_limit": f"{memory_bytes}B"})
        for number, stream in enumerate(self._streams):
            _create_table(self._database, f"_{number}", stream)
        self._database.execute("SET lock_configuration = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    @contextmanager
    def rows(self, statement: str) -> Iterator[pa.RecordBatchReader]:
        """Returns the rows of a SELECT, for the body of a `with`.

        Raises:
            SqlStatementError: The statement is something else, or fails.
            SqlLimitError: The statement needs more memory.
            SqlReadError: The state cannot be read.
        """
        with _failures(self._streams, self._memory_bytes):
            statements = self._database.extract_statements(statement)
            if len(statements) != 1 or statements[0].type not in _ALLOWED:
                raise SqlStatementError("only a single SELECT can be run over state")
            yield self._database.sql(statement).to_arrow_reader(_BATCH_ROWS)


def _write(rows: pa.RecordBatchReader, rows_max: int) -> bool:
    left = rows_max
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
        for batch in rows:
            stream.write_batch(batch.slice(0, left))
            if batch.num_rows > left:
                return True
            left -= batch.num_rows
    return False


class _Stream:
    """Gives DuckDB a table's rows for each scan, and keeps a failure."""

    def __init__(self, table: StateTable) -> None:
        self.table = table
        self.failure: Exception | None = None

    def __arrow_c_schema__(self) -> object:
        return self.table.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        batches = pa.RecordBatchReader.from_batches(self.table.schema, self._batches())
        return batches.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.table.batches()
        except Exception as error:
            self.failure = error
            raise


def _create_table(database: duckdb.DuckDBPyConnection, name: str, stream: _Stream) -> None:
    """Names a table after its operator and state.

    DuckDB has no decimals of more than 38 digits; such states are left out.
    """
    schema, table = (_quoted(each) for each in (stream.table.operator, stream.table.name))
    database.register(name, stream)
    database.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    try:
        database.execute(f"CREATE VIEW {schema}.{table} AS SELECT * FROM {name}")  # noqa: S608 - quoted names
    except duckdb.NotImplementedException:
        database.unregister(name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _failures(streams: list[_Stream], memory_bytes: int) -> Iterator[None]:
    """Converts the errors of DuckDB and of the streams that it reads."""
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise SqlLimitError(f"the statement needs more than its limit of {memory_bytes:,} bytes of memory") from None
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        for failure in (stream.failure for stream in streams):
            if failure is not None:
                code = failure.code if isinstance(failure, KeyscaleError) else type(failure).__name__
                raise SqlReadError(f"{code}: {failure}") from None
        raise SqlStatementError(str(error)[:_MESSAGE_CHARACTERS_MAX]) from None  # it may quote a value of any length


def _limit_process(memory_bytes: int, seconds: float) -> None:
    """Bounds the process itself, beside DuckDB's own limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes + _OVERHEAD_BYTES,) * 2)
    processors_s = int(seconds * 4) + 10
    resource.setrlimit(resource.RLIMIT_CPU, (processors_s, processors_s))


if __name__ == "__main__":
    sys.exit(main())
