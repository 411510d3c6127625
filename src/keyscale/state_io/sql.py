"""Runs SQL over the state in a snapshot, with DuckDB.

DuckDB runs in a process of its own, which reads nothing but the snapshot: the file system, extensions and settings are
closed to statements. The process ends at its limits of rows, time and memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.installation import IMPORT_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ENDED_BY_KILL = -9


class SqlStatementError(KeyscaleError):
    """A statement over state cannot be carried out."""

    code = "STATE_SQL_INVALID"
    domain = "user"
    advice = (
        "Correct the statement as the message says. It is one SELECT in DuckDB's SQL; `keyscale state tables "
        '<location>` lists the tables, which are named "operator"."state".'
    )


class SqlLimitError(KeyscaleError):
    """A statement over state has reached its limit of time or memory."""

    code = "STATE_SQL_LIMIT"
    domain = "user"
    advice = "Ask for less, such as a single key or fewer columns, or raise the limit that the message names."


class SqlProcessError(KeyscaleError):
    """The process of a statement has ended without an answer."""

    code = "STATE_SQL_FAILED"
    domain = "internal"
    retryable = True
    advice = (
        "Run the statement again. If it ends in the same way, raise its memory limit, or report it with the message."
    )


class SqlReadError(KeyscaleError):
    """The state that a statement needs cannot be read."""

    code = "STATE_SQL_UNREADABLE"
    domain = "external"
    advice = "The message begins with the code of the cause; docs/errors.md says what to do about it."


_ERRORS: dict[str, type[KeyscaleError]] = {each.code: each for each in (SqlStatementError, SqlLimitError, SqlReadError)}


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """The limits of a statement.

    Attributes:
        rows_max: The result is cut after this many rows.
        seconds: The process is killed after this time.
        memory_bytes: The memory that DuckDB may take. The process may take 1 GiB more, to read the state.
    """

    rows_max: int = 10_000
    seconds: float = 60.0
    memory_bytes: int = 1 << 30


class SqlResult:
    """The rows of a statement, streamed from its process.

    Use it in a `with` statement, which ends the process.

    Attributes:
        schema: The columns.
        is_truncated: Whether rows were cut; known after the last batch.
    """

    schema: pa.Schema

    def __init__(self, request: dict[str, Any], limits: SqlLimits) -> None:
        self.is_truncated = False
        self._limits = limits
        self._timed_out = False
        # Made here, so that the files of a killed process are removed, too.
        self._scratch = tempfile.TemporaryDirectory(prefix="keyscale-sql-", dir=request["scratch"])
        places = filter(None, [str(IMPORT_PATH), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "keyscale.state_io.sql_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self._watch = threading.Timer(limits.seconds, self._end_late)
        self._watch.daemon = True
        self._watch.start()
        try:
            self._reader = self._started(json.dumps({**request, "scratch": self._scratch.name}).encode())
            self.schema = self._reader.schema
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows.

        Raises:
            SqlStatementError: The statement fails on a value.
            SqlLimitError: A limit of time or memory is reached.
            SqlReadError: A stored object is missing or damaged.
            SqlProcessError: The process has ended without an answer.
        """
        try:
            yield from self._reader
        except (pa.ArrowInvalid, OSError):
            raise self._failure() from None
        if self._process.wait() != 0:
            raise self._failure()
        self.is_truncated = bool(self._report().get("is_truncated"))

    def read_all(self) -> pa.Table:
        """Returns all rows; raises as `batches`."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def close(self) -> None:
        """Ends the process; closing twice is harmless."""
        self._watch.cancel()
        if self._process.poll() is None:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        self._scratch.cleanup()

    def _started(self, request: bytes) -> pa.RecordBatchStreamReader:
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        try:
            self._process.stdin.write(request)
            self._process.stdin.close()
            return pa.ipc.open_stream(self._process.stdout)
        except (pa.ArrowInvalid, OSError):
            raise self._failure() from None

    def _end_late(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _failure(self) -> KeyscaleError:
        code = self._process.wait()
        if self._timed_out:
            return SqlLimitError(f"the statement takes longer than its limit of {self._limits.seconds:g} seconds")
        report = self._report()
        if report.get("code") in _ERRORS:
            return _ERRORS[report["code"]](report["message"])
        return SqlProcessError(
            f"the process ended with exit code {code} {'(killed)' if code == _ENDED_BY_KILL else ''}"
        )

    def _report(self) -> dict[str, Any]:
        """Returns what the process has said in its last line."""
        assert self._process.stderr is not None  # noqa: S101 - a pipe
        lines = self._process.stderr.read().splitlines()
        try:
            report = json.loads(lines[-1]) if lines else {}
        except ValueError:
            return {}
        return report if isinstance(report, dict) else {}


def query(location: str, statement: str, limits: SqlLimits | None = None, *, scratch: Path | None = None) -> SqlResult:
    """Runs a SELECT over the state in a checkpoint or savepoint.

    Each state is a table with the name of its operator and its own, such as `"count-per-user"."clicks"`.

    Args:
        location: The URL of the manifest, or of the manifest's directory.
        statement: One SELECT in DuckDB's SQL.
        limits: The limits of the statement; None: the defaults.
        scratch: A directory with room for the shards of the operators in the statement; None: the system's directory
            for temporary files.

    Raises:
        SqlStatementError: The statement is no SELECT, or cannot be carried out.
        SqlLimitError: A limit of time or memory is reached.
        SqlReadError: The snapshot cannot be read.
        SqlProcessError: The process has ended without an answer.
    """
    limits = limits or SqlLimits()
    request = {"location": location, "statement": statement, "scratch": None if scratch is None else str(scratch)}
    return SqlResult({**request, **asdict(limits)}, limits)
