"""A report says what differs from the committed batch, and is silent where nothing can be compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from keyscale.replay.report import Report, SinkComparison, compare_sinks, heading
from keyscale.replay.state_comparison import StateDifference

DIFFERENCE = StateDifference("counts", "visits", {"key": {"user": "ada"}}, 3, None)
ROWS = [{"user": "ada", "visits": 3}]


def batch(*, is_committed: bool = True, output_records: int = 1, **sinks: str) -> Any:
    committed = SimpleNamespace(committed_at_ms=0, output_records=output_records, sinks=sinks)
    before = SimpleNamespace(resume=SimpleNamespace(planned=object()))
    return SimpleNamespace(
        batch_id=7, attempt=2, parallelism=3, before=before, committed=committed if is_committed else None
    )


def report(of: Any = None, **parts: Any) -> Report:
    usual: dict[str, Any] = {
        "program": "visits.py",
        "records": 1,
        "changes": {"counts": 1},
        "output_records": 1,
        "differences": [],
        "sinks": [SinkComparison("files", ROWS, [])],
    }
    return Report(of or batch(), **{**usual, **parts})


def test_a_batch_that_gives_the_same_is_reported_so() -> None:
    same = report()
    assert (same.differs, same.as_json()["differs"]) == (False, False)
    assert list(same.lines(1)) == [
        "read 1 record; nothing was written",
        "  operator counts: 1 changed entry, as committed",
        "  sink files: 1 row, as published",
        '    {"user": "ada", "visits": 3}',
        "the replay gives what the batch has committed",
    ]
    assert heading(batch()) == ("batch 7 (records), committed by attempt 2 at 1970-01-01 00:00:00 UTC, in 3 subtasks")


def test_the_json_of_a_report_has_each_fact_at_its_name() -> None:
    of = batch(output_records=11)
    of.committed.committed_at_ms = 12
    found = report(
        of,
        records=6,
        changes={"counts": 8},
        output_records=7,
        differences=[DIFFERENCE],
        sinks=[SinkComparison("files", ROWS, [1], [2])],
        key="ada",
        key_records=5,
    )
    facts = {
        "batch_id": 7,
        "attempt": 2,
        "parallelism": 3,
        "committed_at_ms": 12,
        "is_of_time_alone": False,
        "program": "visits.py",
        "key": "ada",
        "key_records": 5,
        "records": 6,
        "changes": {"counts": 8},
        "output_records": 7,
        "committed_output_records": 11,
        "differences": [
            {
                "operator": "counts",
                "state": "visits",
                "entry": {"key": {"user": "ada"}},
                "committed": 3,
                "replayed": None,
            }
        ],
        "sinks": [{"sink": "files", "rows": ROWS, "missing": [1], "additional": [2]}],
        "differs": True,
    }
    assert found.as_json() == facts
    of.committed, of.before.resume.planned = None, None
    nothing = {"committed_at_ms": None, "is_of_time_alone": True, "committed_output_records": None, "differs": None}
    assert found.as_json() == facts | nothing
    assert heading(of) == "batch 7 (timers alone), not committed by attempt 2, in 3 subtasks"


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"differences": [DIFFERENCE]}, '    visits {"key": {"user": "ada"}}: committed 3, replayed nothing'),
        (
            {"sinks": [SinkComparison("files", [], ROWS)]},
            '    only committed: {"user": "ada", "visits": 3}',
        ),
        ({"output_records": 2}, "records emitted to sinks: 2 here, 1 when it was committed"),
        ({"differences": [DIFFERENCE] * 3}, "    2 more; --rows shows more"),
    ],
)
def test_each_difference_is_shown(parts: dict[str, Any], line: str) -> None:
    different = report(**parts)
    lines = list(different.lines(1))
    assert line in lines
    assert lines[-1] == "the replay differs from what the batch has committed"
    assert different.as_json()["differs"] is True


def test_a_single_key_and_a_batch_without_a_commit_compare_no_output() -> None:
    assert not report(key="ada", output_records=9, sinks=[SinkComparison("files", [])]).differs
    without = report(batch(is_committed=False), output_records=9)
    assert without.as_json()["differs"] is None
    assert list(without.lines(0))[-1].startswith("the batch is not committed")


@pytest.mark.parametrize(
    ("parts", "end"),
    [
        ({}, ["no record of key eve is in the batch"]),
        ({"changes": {"counts": 1}}, ["the replay gives what the batch has committed"]),
        ({"differences": [DIFFERENCE]}, ["the replay differs from what the batch has committed"]),
    ],
)
def test_a_key_without_records_gives_nothing_that_could_be_compared_unless_a_timer_runs(
    parts: dict[str, Any], end: list[str]
) -> None:
    lines = list(report(**{"key": "eve", "key_records": 0, "changes": {"counts": 0}, "sinks": [], **parts}).lines(9))
    assert "no record of key eve is in the batch" in lines
    assert lines[-1:] == end


class Readable:
    """A sink whose published rows are known."""

    def __init__(self, rows: list[dict[str, Any]] | None) -> None:
        self.rows = rows

    def published(self, token: str, schema: pa.Schema) -> Any:
        assert token.startswith("stag")
        table = None if self.rows is None else pa.Table.from_pylist(self.rows, schema)
        return None if table is None else SimpleNamespace(toArrow=lambda: table)


@pytest.mark.parametrize(
    ("sink", "is_whole", "missing", "additional"),
    [
        (Readable(ROWS), True, [], []),
        (Readable([*ROWS, *ROWS]), True, ROWS, []),
        (Readable([]), True, [], ROWS),
        (Readable(None), True, None, []),
        (Readable([]), False, None, []),
        (object(), True, None, []),
    ],
)
def test_rows_are_compared_with_published_rows_that_can_be_read(
    sink: Any, is_whole: bool, missing: Any, additional: Any
) -> None:
    topology = cast("Any", SimpleNamespace(sinks=[SimpleNamespace(uid="files", sink=sink)]))
    tables = cast("Any", {"files": pa.Table.from_pylist(ROWS)})
    (found,) = compare_sinks(topology, batch(files="staged"), tables, is_whole=is_whole)
    assert (found.rows, found.missing, found.additional) == (ROWS, missing, additional)
