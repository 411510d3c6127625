"""The process that reads state for the control plane: its answers have limits, and are JSON."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import resource
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state_io import answer_limit, reading_process, snapshot_sql, sql_process
from keyscale.state_io.key_text import KeyTextError
from keyscale.state_io.row_files import plain_value
from keyscale.state_io.sql import SqlLimitError, SqlReadError, SqlStatementError
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import SAVEPOINT

if TYPE_CHECKING:
    from types import ModuleType

    from keyscale.state_io.key_state import KeyRequest

JOB = "every-kind"


def answer_to(statement: str) -> dict[str, Any]:
    request = {
        "read": "sql",
        "store_url": (GOLDEN / "savepoint-v1").as_uri(),
        "job_id": JOB,
        "manifest_path": f"{JOB}/savepoints/{SAVEPOINT}/manifest.json",
        "statement": statement,
    }
    answer: dict[str, Any] = json.loads(reading_process.answer_text(request))
    return answer


def test_an_answer_larger_than_its_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_limit, "ANSWER_BYTES_MAX", 10_000)
    assert answer_to("select repeat('x', 100) as text")["answer"]["rows"] == [["x" * 100]]
    assert answer_to("select repeat('x', 10000) as text")["problem"]["code"] == "STATE_ANSWER_TOO_LARGE"


def test_a_read_without_enough_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(reading_process, "_answer", fail)
    assert answer_to("select 1")["problem"]["code"] == "STATE_ANSWER_TOO_LARGE"


@pytest.mark.parametrize(("process", "reads"), [(reading_process, "answer_text"), (sql_process, "_run")])
def test_a_process_limits_itself_before_it_reads(
    process: ModuleType, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def read(_: object) -> str:
        done.append("read")
        return ""

    monkeypatch.setattr(resource, "setrlimit", lambda kind, _: done.append(kind))
    monkeypatch.setattr(logging, "disable", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"memory_bytes": 1, "seconds": 1}'))
    monkeypatch.setattr(process, reads, read)
    with warnings.catch_warnings():
        assert process.main() == 0
    assert done == [resource.RLIMIT_CORE, resource.RLIMIT_DATA, resource.RLIMIT_CPU, "read"]


def test_each_kind_of_request_is_answered_by_its_own_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "read_key", lambda request: {"read_key": request.key})
    monkeypatch.setattr(reading_process, "read_history", lambda request: {"read_history": request.key})
    monkeypatch.setattr(reading_process, "change_of_job", lambda **request: {"change_of_job": request})
    monkeypatch.setattr(reading_process, "first_answer", lambda **request: {"first_answer": request})
    monkeypatch.setattr(snapshot_sql, "run_statement", lambda request: {"run_statement": request.statement})
    read = {"store_url": "u", "job_id": "j", "operator": "o", "key": "k"}
    statement = {"store_url": "u", "job_id": "j", "manifest_path": "m", "statement": "s"}
    requests = {"key": read, "history": read, "sql": statement, "change": {"a": 1}, "repeated-change": {"b": 2}}
    answers = {
        kind: json.loads(reading_process.answer_text({"read": kind, **request})) for kind, request in requests.items()
    }
    assert answers == {
        "key": {"answer": {"read_key": "k"}},
        "history": {"answer": {"read_history": "k"}},
        "sql": {"answer": {"run_statement": "s"}},
        "change": {"answer": {"change_of_job": {"a": 1}}},
        "repeated-change": {"answer": {"answer": {"first_answer": {"b": 2}}}},
    }


def test_each_line_is_a_request_for_a_latest_key_until_the_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    class Keys:
        def read(self, request: KeyRequest) -> dict[str, Any]:
            done.append(request.key)
            if request.key == "wrong":
                raise KeyTextError("the key is wrong")
            return {"key": request.key}

        def close(self) -> None:
            done.append("closed")

    monkeypatch.setattr(reading_process, "LatestKeys", Keys)
    monkeypatch.setattr(sys, "argv", ["reading_process", "--latest-keys"])
    limits: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, _: limits.append(kind))
    monkeypatch.setattr(logging, "disable", lambda: None)
    out, in_ = os.pipe()
    for key in ("wrong", "ada"):
        request = {"store_url": "u", "job_id": "j", "operator": "o", "key": key}
        os.write(in_, f"{json.dumps(request)}\n".encode())
    os.close(in_)
    with os.fdopen(out) as lines, warnings.catch_warnings():
        monkeypatch.setattr(sys, "stdin", lines)
        assert reading_process.main() == 0
    assert done == ["wrong", "ada", "closed"]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"problem": {"code": "STATE_KEY_INVALID", "domain": "user", "message": "the key is wrong"}},
        {"answer": {"key": "ada"}},
    ]
    assert resource.RLIMIT_CPU not in limits, "it lives longer than a single read"


@pytest.mark.parametrize(
    ("outcome", "report"),
    [
        (True, {"is_truncated": True}),
        (False, {"is_truncated": False}),
        (SqlStatementError("wrong"), {"code": "STATE_SQL_INVALID", "message": "wrong"}),
        (SqlLimitError("too much"), {"code": "STATE_SQL_LIMIT", "message": "too much"}),
        (SqlReadError("unreadable"), {"code": "STATE_SQL_UNREADABLE", "message": "unreadable"}),
        (
            ObjectCorruptError("a file"),
            {"code": "STATE_SQL_UNREADABLE", "message": "STATE_CHECKSUM_MISMATCH: a file"},
        ),
        (MemoryError(), {"code": "STATE_SQL_LIMIT", "message": "the process has reached its limit of memory"}),
    ],
    ids=str,
)
def test_a_statement_reports_its_end_in_its_last_line(
    outcome: bool | Exception,
    report: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: object) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(logging, "disable", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"memory_bytes": 5000, "seconds": 2.5}'))
    monkeypatch.setattr(sql_process, "_run", run)
    with warnings.catch_warnings():
        assert sql_process.main() == int("code" in report)
    assert json.loads(capsys.readouterr().err.splitlines()[-1]) == report
    assert limits == {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_DATA: (5000 + (1 << 30),) * 2,
        resource.RLIMIT_CPU: (20, 20),
    }


def test_numbers_that_json_cannot_hold_are_text() -> None:
    assert [plain_value(value) for value in (math.nan, math.inf, [-math.inf], 1.5)] == [
        "NaN",
        "Infinity",
        ["-Infinity"],
        1.5,
    ]


def test_a_time_that_python_cannot_hold_is_its_number_as_text() -> None:
    statement = "select timestamp '290000-01-01 00:00:00' as one, date 'infinity' as two"
    assert answer_to(statement)["answer"]["rows"] == [["9089348860800000000", "2147483647"]]
