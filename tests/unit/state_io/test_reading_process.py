"""The process that reads state for the control plane: its answers have limits, and are JSON."""

from __future__ import annotations

import io
import json
import logging
import math
import resource
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.state_io import answer_limit, reading_process, sql_process
from keyscale.state_io.row_files import plain_value
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import SAVEPOINT

if TYPE_CHECKING:
    from types import ModuleType

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
