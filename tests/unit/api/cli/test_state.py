"""The options of `state sql` limit a statement over state, in the units of the code."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.state_io import sql
from keyscale.state_io.sql import SqlLimits
from tests.support.control_plane.command_line import done, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ((), SqlLimits()),
        (("--rows", "3", "--timeout", "1.5", "--memory-mib", "100"), SqlLimits(3, 1.5, 100 * 1024 * 1024)),
    ],
)
def test_a_statement_has_the_limits_of_its_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], limits: SqlLimits
) -> None:
    asked: list[Any] = []

    @contextmanager
    def query(*given: Any, scratch: Path | None) -> Iterator[Any]:
        asked.append((*given, scratch))
        yield SimpleNamespace(batches=lambda: iter(()), schema=pa.schema([("n", pa.int64())]), is_truncated=True)

    monkeypatch.setattr(sql, "query", query)
    answer = done(run("state", "sql", "file:///s", "select 1", "--scratch", str(tmp_path), *options))
    assert asked == [("file:///s", "select 1", limits, tmp_path)]
    assert f"only the first {limits.rows_max:,} rows" in answer.stderr
