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


@pytest.mark.parametrize(
    ("options", "file", "written"),
    [
        (("--format", "csv"), None, "n\n1\n2\n"),
        (("--format", "json"), None, '{"n": 1}\n{"n": 2}\n'),
        (("--json",), None, '{"n": 1}\n{"n": 2}\n'),
        ((), "rows.csv", "n\n1\n2\n"),
        ((), "rows.json", '{"n": 1}\n{"n": 2}\n'),
        (("--format", "json"), "rows.csv", '{"n": 1}\n{"n": 2}\n'),
    ],
)
def test_rows_have_the_form_of_the_option_or_of_the_files_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], file: str | None, written: str
) -> None:
    schema = pa.schema([("n", pa.int64())])

    @contextmanager
    def query(*_: Any, **__: Any) -> Iterator[Any]:
        batches = [pa.record_batch([[number]], schema=schema) for number in (1, 2)]
        yield SimpleNamespace(batches=lambda: iter(batches), schema=schema, is_truncated=False)

    monkeypatch.setattr(sql, "query", query)
    output = () if file is None else ("--output", str(tmp_path / file))
    answer = done(run("state", "sql", "file:///s", "select 1", *options, *output))
    found = answer.stdout if file is None else (tmp_path / file).read_text()
    assert found.replace('"n":1', '"n": 1').replace('"n":2', '"n": 2').replace('"n"\n', "n\n") == written
    assert answer.stderr == ("" if file is None else f"2 rows written to {tmp_path / file}\n")


def test_rows_are_a_table_for_people_and_parquet_needs_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("key", pa.struct([("user", pa.string())]))])

    @contextmanager
    def query(*_: Any, **__: Any) -> Iterator[Any]:
        rows = pa.record_batch([[1, None], [{"user": "ä"}, None]], schema=schema)
        yield SimpleNamespace(batches=lambda: iter([rows]), schema=schema, is_truncated=False)

    monkeypatch.setattr(sql, "query", query)
    command = ("state", "sql", "file:///s", "select 1")
    shown = [" ".join(line.split()) for line in done(run(*command)).stdout.splitlines()]
    assert shown == ["n key", '1 {"user": "ä"}', "- -"]
    for options, reason in (
        (("--format", "parquet"), "Parquet needs the name of a file"),
        (("--output", str(tmp_path / "rows")), "the name of the file ends in"),
    ):
        refused = run(*command, *options)
        assert (refused.exit_code, reason in refused.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []
