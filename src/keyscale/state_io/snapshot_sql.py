"""Runs SQL over the state in a job's own snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.identifiers import JobId
from keyscale.state.doors.objects import open_store
from keyscale.state.doors.reading import StatePoint

from .key_state import READ_BYTES_MAX
from .row_files import plain_value
from .sql import SqlLimitError
from .sql_process import StateDatabase
from .state_reader import StateReader

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

_SHARDS_OPEN = 64


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """The statement and its limits.

    Attributes:
        store_url: The job's object store.
        job_id: The job.
        manifest_path: The path of the snapshot's manifest.
        statement: One SELECT in DuckDB's SQL.
        rows_max: The result is cut after this many rows.
        memory_bytes: The memory that DuckDB may take.
        state_bytes_max: The size of the snapshot that may be read.
    """

    store_url: str
    job_id: str
    manifest_path: str
    statement: str
    rows_max: int = 1000
    memory_bytes: int = 1 << 30
    state_bytes_max: int = 2 << 30


def run_statement(request: SqlRequest, scratch: Path | None = None) -> dict[str, Any]:
    """Returns the columns and rows of a statement, for JSON.

    Raises:
        SqlStatementError: The statement is something else than a SELECT, or fails.
        SqlLimitError: The snapshot or the statement is too large.
        SqlReadError: The state cannot be read.
        ForeignStateError: The snapshot has objects of another job.
        KeyscaleError: The store does not answer, or the manifest cannot be read.
    """
    store = open_store(request.store_url, get_bytes_max=READ_BYTES_MAX)
    point = StatePoint.of_path(store, request.manifest_path)
    point.check_own(JobId(request.job_id))
    size = 0 if point.manifest is None else point.manifest.state_size_bytes
    if size > request.state_bytes_max:
        raise SqlLimitError(f"the snapshot has {size:,} bytes, and a statement may read {request.state_bytes_max:,}")
    with (
        StateReader(point, scratch=scratch, shards_open=_SHARDS_OPEN) as state,
        StateDatabase(state.tables(), request.memory_bytes) as database,
        database.rows(request.statement) as rows,
    ):
        found: list[list[Any]] = []
        is_truncated = False
        for batch in rows:
            left = request.rows_max - len(found)
            part = batch.slice(0, left)
            found += [[_plain(column[place]) for column in part.columns] for place in range(part.num_rows)]
            if batch.num_rows > left:
                is_truncated = True
                break
        columns = [{"name": field.name, "type": str(field.type)} for field in rows.schema]
        return {"columns": columns, "rows": found, "is_truncated": is_truncated}


def _plain(scalar: pa.Scalar) -> Any:
    """Returns a value as JSON can hold it.

    A time outside Python's years 1 to 9999 is its number, as text.
    """
    try:
        return plain_value(scalar.as_py())
    except (OverflowError, ValueError):
        return str(getattr(scalar, "value", scalar))
